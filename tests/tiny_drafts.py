"""Tiny drafts with a cut head, as folders: what ``training.make_draft`` writes, without the fit."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file

KNOWN = (0, 3, 5, *range(30, 120), 200, 256, 257)  # of the tiny vocabulary of 258, both special tokens among them


def write_tiny_draft(folder: Path, model: str, known: Sequence[int] = KNOWN) -> str:
    """Copy a tiny model and cut its head to the known tokens when it is served. Return the draft's folder."""
    shutil.copytree(model, folder, dirs_exist_ok=True)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"draft_vocab_size": len(known)}))
    write_draft_vocabulary(folder, torch.tensor(known) - torch.arange(len(known)))
    return str(folder)


def write_draft_vocabulary(folder: Path, d2t: torch.Tensor) -> None:
    """Write the map of a draft's tokens, right or wrong."""
    save_file({"d2t": d2t}, folder / "draft_vocabulary.safetensors")
