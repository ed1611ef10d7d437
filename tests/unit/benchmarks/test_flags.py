"""Senseless flags are told of before anything starts, whichever benchmark they are for."""

import importlib

import pytest

SENSELESS = {
    "load": [
        ("--seconds", "0"),
        ("--seconds", "nan"),
        ("--seconds", "inf"),
        ("--share", "0"),
        ("--share", "inf"),
        ("--name", "a--b"),
    ],
    "overhead": [("--target-ms", "0"), ("--alpha", "1.1"), ("--ahead-tokens", "-1"), ("--grid-laps", "-1")],
    "pass_cost": [("--seconds", "nan"), ("--threads", "-3")],
    "wire": [("--seconds", "-1")],
}


@pytest.mark.parametrize(
    ("module", "flag", "value"), [(name, *case) for name, cases in SENSELESS.items() for case in cases]
)
def test_it_is_refused_by_name(module, flag, value, capsys):
    with pytest.raises(SystemExit):
        importlib.import_module(f"benchmarks.{module}").parse([flag, value])
    assert flag in capsys.readouterr().err
