"""A training on disk: everything that a resumed run needs to go on as if it had not ended.

A checkpoint is written beside and renamed, so that a broken run leaves the one before. Nothing in it is executed when
it is read (``weights_only``).
"""

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import torch

from specdec.model.refusal import ModelRefused
from training.atomic_files import replaced
from training.curve import Point, best

KEPT = 2
PATTERN = "checkpoint-*.pt"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What is saved at a point of the curve.

    Learning rate and order of the answers are functions of the counts here, and nothing is dropped out: there is no
    other state.

    Attributes:
        origin: what the training was started with, by name; a run of another origin must not go on from here.
        curve: at least one point; the last is this checkpoint's.
        answers: how many answers were learnt from, repeats counted: the position in the data.
        weights: those that learn, by name; the others are where the training started from.
        optimiser: its state.
    """

    origin: Mapping[str, Any]
    curve: Sequence[Point]
    answers: int
    weights: Mapping[str, torch.Tensor]
    optimiser: Mapping[str, Any]


def write_checkpoint(folder: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint and drop those that neither of the last two runs back to: they and their best points stay."""
    curve = checkpoint.curve
    with replaced(_path(folder, curve[-1])) as path:
        torch.save(
            {
                "origin": dict(checkpoint.origin),
                "curve": [astuple(point) for point in curve],
                "answers": checkpoint.answers,
                "weights": dict(checkpoint.weights),
                "optimiser": dict(checkpoint.optimiser),
            },
            path,
        )
    kept = {_path(folder, point) for point in [*curve[-KEPT:], *(best(curve[: len(curve) - n]) for n in _ages(curve))]}
    for old in set(folder.glob(PATTERN)) - kept:
        old.unlink()


def latest_checkpoint(folder: Path, origin: Mapping[str, Any], device: torch.device) -> Checkpoint | None:
    """Read the last checkpoint, if there is one.

    Args:
        folder: of the training.
        origin: what this run was started with.
        device: where tensors go.

    Raises:
        ModelRefused: it cannot be read, or is of a training of another origin; the message says what differs.
    """
    paths = sorted(folder.glob(PATTERN))
    if not paths:
        return None
    checkpoint = _read(paths[-1], device)
    if differing := sorted(name for name in origin if checkpoint.origin.get(name) != origin[name]):
        raise ModelRefused(
            f"{paths[-1]} is of a training with other {', '.join(differing)}; give what it was started with, or remove "
            "its checkpoints"
        )
    return checkpoint


def best_checkpoint(folder: Path, curve: Sequence[Point], device: torch.device) -> Checkpoint:
    """Read the checkpoint of the curve's best point.

    Raises:
        ModelRefused: it cannot be read.
    """
    return _read(_path(folder, best(curve)), device)


def _ages(curve: Sequence[Point]) -> range:
    """Return how many points each kept checkpoint's curve is shorter than the last one's."""
    return range(min(KEPT, len(curve)))


def _path(folder: Path, point: Point) -> Path:
    return folder / f"checkpoint-{point.step:08d}.pt"


def _read(path: Path, device: torch.device) -> Checkpoint:
    try:
        written = torch.load(path, map_location=device, weights_only=True)
        curve = [Point(*point) for point in written["curve"]]
        return Checkpoint(written["origin"], curve, written["answers"], written["weights"], written["optimiser"])
    except (OSError, RuntimeError, EOFError, KeyError, TypeError, ValueError, pickle.UnpicklingError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ModelRefused(f"{path} cannot be read ({reason}); remove it to go on from the one before") from error
