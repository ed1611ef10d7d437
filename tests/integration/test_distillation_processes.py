"""Two processes train as one does: the same batches, the same gradient, the same curve up to rounding."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tiny_models import write_tiny_model

ROOT = Path(__file__).parents[2]
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]


def curve_of(command, target, folder):
    run = subprocess.run(
        [sys.executable, *command, "-m", "tests.integration.distilling_process", target, str(folder)],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert run.returncode == 0, run.stderr[-4000:]
    assert run.stderr.count("kept: step") == 1  # one process writes
    return [json.loads(line) for line in (folder / "curve.jsonl").read_text().splitlines()]


@pytest.mark.long
def test_two_processes_train_as_one_does(tmp_path):
    target = write_tiny_model(tmp_path / "target")
    one, two = (curve_of(command, target, tmp_path / name) for command, name in (([], "one"), (TORCHRUN, "two")))
    assert len(one) == len(two) > 5
    assert one[0]["acceptance"] + 0.1 < one[-1]["acceptance"]
    for left, right in zip(one, two, strict=True):
        assert left == pytest.approx(right, rel=1e-4)
