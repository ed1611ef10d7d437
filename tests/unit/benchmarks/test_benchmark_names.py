"""A benchmark or a pair of an unknown name is told by that name, with those there are."""

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import load, overhead, pair, pass_cost, wire
from benchmarks.__main__ import BENCHMARKS, main
from benchmarks.report import KINDS
from deploy.pairs import DEFAULT_PAIR, PAIRS

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


@pytest.mark.parametrize("name", ["pair", "load", "pass_cost"])
def test_an_unknown_pair_is_told_with_those_there_are(name, capsys):
    with pytest.raises(SystemExit) as ended:
        main([name, "--pair", "nope"])
    assert ended.value.code == 2
    refusal = capsys.readouterr().err.splitlines()[-1]
    assert "nope" in refusal
    assert all(known in refusal for known in PAIRS)


def test_the_cost_of_a_pass_is_that_of_the_named_target():
    def model(*flags):
        return pass_cost.plan_of(pass_cost.parse(list(flags))).model

    assert model() == PAIRS[DEFAULT_PAIR].target
    assert model("--pair", "qwen2.5-coder") == PAIRS["qwen2.5-coder"].target
    assert model("--pair", "qwen2.5-coder", "--target", "T") == model("--model", "T") == "T"


@pytest.mark.parametrize(
    ("name", "flag"), [("overhead", "--pair"), ("overhead", "--target"), ("wire", "--draft"), ("pass_cost", "--draft")]
)
def test_models_are_refused_where_none_can_be_chosen(name, flag, capsys):
    with pytest.raises(SystemExit) as ended:
        main([name, flag, "smollm2"])
    assert ended.value.code == 2
    refusal = capsys.readouterr().err.splitlines()[-1]
    assert f"{name} measures" in refusal
    assert "so it takes no" in refusal
