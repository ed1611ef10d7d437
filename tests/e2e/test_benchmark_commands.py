"""Each benchmark command measures through the real services and prints what its report needs."""

import json

import pytest

from benchmarks import overhead


def measured(capsys, run, arguments):
    assert run(arguments) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.long
def test_overhead(capsys):
    flags = ["--laps", "2", "--rounds", "10", "--round-trip", "50", "--verification", "coupled"]
    report = measured(capsys, overhead.main, flags)
    near, far = ([way for way in report["ways"] if way["round_trip_ms"] == added] for added in (0, 50))
    assert [way["gamma"] for way in near] == [way["gamma"] for way in far] == [0, 5]
    for here, there in zip(near, far, strict=True):
        assert here["fallback_rounds"] == there["fallback_rounds"] == 0
        calls = 2 if here["gamma"] else 1
        assert there["round_ms"]["low"] > there["expected_round_ms"] >= here["expected_round_ms"] + 50 * calls
        assert here["tokens_a_round"] == there["tokens_a_round"]  # the same seeds
