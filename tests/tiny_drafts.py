"""Tiny drafts with a cut head, as folders: what ``training.make_draft`` writes, without asking the target."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file

from specdec.model.loading import load_model
from training.answers import Answer
from training.draft_folder import write_draft
from training.early_exit import EarlyExit
from training.exit_map import NormalEquations
from training.network_end import network_end

KNOWN = (0, 3, 5, *range(30, 120), 200, 256, 257)  # of the tiny vocabulary of 258, both special tokens among them


def write_tiny_draft(folder: Path, model: str, known: Sequence[int] = KNOWN) -> str:
    """Copy a tiny model and cut its head to the known tokens when it is served. Return the draft's folder."""
    shutil.copytree(model, folder, dirs_exist_ok=True)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"draft_vocab_size": len(known)}))
    write_draft_vocabulary(folder, torch.tensor(known) - torch.arange(len(known)))
    return str(folder)


def write_early_exit(folder: Path, model: str, known: Sequence[int] = KNOWN, layers: int = 1) -> str:
    """Fit an early-exit draft of a tiny model on random tokens. Return the draft's folder."""
    target = load_model(model, "cpu", "float64")
    leaving = EarlyExit(network_end(target), layers)
    tokens = torch.randint(target.vocabulary_size, (8, 200), generator=torch.Generator().manual_seed(0)).tolist()
    equations = NormalEquations(leaving.projection)
    equations.add(leaving.states([Answer(tuple(answer), 1) for answer in tokens]))
    exit_map = equations.solved(1e-3, 0.03)
    network = leaving.draft(leaving.end.head.weight.detach() @ exit_map.weight, exit_map.projection)
    write_draft(folder, network, torch.tensor(known), Path(model))
    return str(folder)


def write_draft_vocabulary(folder: Path, d2t: torch.Tensor) -> None:
    """Write the map of a draft's tokens, right or wrong."""
    save_file({"d2t": d2t}, folder / "draft_vocabulary.safetensors")
