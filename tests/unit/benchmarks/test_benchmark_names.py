"""A benchmark or a pair of an unknown name is told by that name, with those there are."""

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import load, overhead, pair, pass_cost, wire
from benchmarks.__main__ import BENCHMARKS, main
from benchmarks.report import KINDS
from deploy.pairs import PAIRS

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("name", ["nope", "pari", "load_run", "report", ""])
def test_make_bench_tells_an_unknown_name_and_what_each_benchmark_measures(name):
    command = ["make", "--assume-old=setup", f"BIN={Path(sys.executable).parent}", "bench", f"BENCH={name}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    refusal, *listed = [line for line in done.stderr.splitlines() if not line.startswith("make")]
    assert repr(name) in refusal
    modules = {"pair": pair, "overhead": overhead, "load": load, "wire": wire, "pass_cost": pass_cost}
    assert [line.split(maxsplit=1) for line in listed] == [
        [known, module.__doc__.splitlines()[0]] for known, module in modules.items()
    ]
    assert "bench] Error 2" in done.stderr  # the command's own status; make's is 2 whatever fails


def test_every_benchmark_has_a_place_in_the_report():
    assert sorted(BENCHMARKS) == sorted(KINDS)


@pytest.mark.parametrize("name", ["pair", "load"])
def test_an_unknown_pair_is_told_with_those_there_are(name, capsys):
    with pytest.raises(SystemExit) as ended:
        main([name, "--pair", "nope"])
    assert ended.value.code == 2
    refusal = capsys.readouterr().err.splitlines()[-1]
    assert "nope" in refusal
    assert all(known in refusal for known in PAIRS)
