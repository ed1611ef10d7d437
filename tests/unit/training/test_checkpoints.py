"""Which checkpoints stay, and what a broken write leaves."""

import pytest
import torch

from training.atomic_files import replaced
from training.checkpoints import Checkpoint, best_checkpoint, latest_checkpoint, write_checkpoint
from training.curve import Point

CPU = torch.device("cpu")


def checkpoint_of(values):
    curve = [Point(step, 10 * step, value) for step, value in enumerate(values)]
    weights = {"weight": torch.tensor([float(len(values))])}
    return Checkpoint({"seed": 0}, curve, 7, weights, {"state": {}, "param_groups": []})


def steps_in(folder):
    return [int(path.stem.removeprefix("checkpoint-")) for path in sorted(folder.iterdir())]


def test_the_last_two_stay_and_the_best_of_each(tmp_path):
    values = [0.2, 0.5, 0.3, 0.4, 0.6, 0.1, 0.1, 0.1]
    kept = [[0], [0, 1], [1, 2], [1, 2, 3], [1, 3, 4], [4, 5], [4, 5, 6], [4, 6, 7]]
    for count, expected in enumerate(kept, start=1):
        write_checkpoint(tmp_path, checkpoint_of(values[:count]))
        assert steps_in(tmp_path) == expected
    assert best_checkpoint(tmp_path, checkpoint_of(values).curve, CPU).weights["weight"].item() == 5


def test_what_is_read_is_what_was_written(tmp_path):
    assert latest_checkpoint(tmp_path, {"seed": 0}, CPU) is None
    written = checkpoint_of([0.2, 0.5])
    write_checkpoint(tmp_path, checkpoint_of([0.2]))
    write_checkpoint(tmp_path, written)
    assert latest_checkpoint(tmp_path, {"seed": 0}, CPU) == written


def test_the_one_before_can_go_on_when_the_last_is_removed(tmp_path):
    values = [0.5, 0.1, 0.6, 0.1]
    for count in range(1, 5):
        write_checkpoint(tmp_path, checkpoint_of(values[:count]))
    max(tmp_path.iterdir()).unlink()
    before = latest_checkpoint(tmp_path, {"seed": 0}, CPU)
    assert before == checkpoint_of(values[:3])
    assert best_checkpoint(tmp_path, before.curve, CPU)


def test_a_write_that_breaks_leaves_the_old_file(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(OSError, match="full"):
        _write_half(path)
    assert path.read_text() == "old"
    with replaced(path) as beside:
        beside.write_text("new")
    assert path.read_text() == "new"


def _write_half(path):
    with replaced(path) as beside:
        beside.write_text("new, but not who")
        raise OSError("full")
