"""Each benchmark command measures through the real services and prints what its report needs."""

import json

import pytest

from benchmarks import load, overhead, wire


def measured(capsys, run, arguments):
    assert run(arguments) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.long
def test_overhead(capsys):
    flags = ["--laps", "2", "--rounds", "10", "--round-trip", "50", "--verification", "coupled"]
    report = measured(capsys, overhead.main, flags)
    near, far = ([way for way in report["ways"] if way["round_trip_ms"] == added] for added in (0, 50))
    assert [way["gamma"] for way in near] == [way["gamma"] for way in far] == [0, 5, 5]
    for here, there in zip(near, far, strict=True):
        assert here["fallback_rounds"] == there["fallback_rounds"] == 0
        calls = 2 if here["gamma"] else 1
        assert there["expected_round_ms"] >= here["expected_round_ms"] + 50 * calls
        assert there["ahead"] or there["round_ms"]["low"] > there["expected_round_ms"]
        assert here["tokens_a_round"] == there["tokens_a_round"]  # the same seeds
        if here["ahead"]:
            assert min(found["drafted_ahead"]["hits"] for found in (here, there)) > 0


@pytest.mark.long
def test_load(capsys):
    models = ["--target", "synthetic:seed=1,pass_ms=5", "--draft", "synthetic:seed=1,agreement=0.8,pass_ms=1"]
    flags = ["--sessions", "1", "3", "--share", "0.5", "--seconds", "4", "--laps", "1", "--max-new-tokens", "24"]
    report = measured(capsys, load.main, [*models, *flags])
    ways = ["gamma 0", "gamma 4", "adaptive"]
    assert [(cell["kind"], cell["way"]) for cell in report["cells"]] == [
        (kind, way) for kind in ("closed", "closed", "open") for way in ways
    ]
    for cell in report["cells"]:
        assert cell["tokens_a_second"] > 0
        assert cell["answers"] > 0
        assert cell["refused"] == cell["fallback_rounds"] == 0
        assert cell["first_token_seconds"]["p50"] <= cell["first_token_seconds"]["p99"]
        assert bool(cell["draft_tokens_a_round"]) == (cell["way"] != "gamma 0")


@pytest.mark.long
def test_wire(capsys):
    flags = ["--context", "100", "3000", "--support", "4", "--rounds", "60", "--seconds", "3"]
    report = measured(capsys, wire.main, flags)
    short, long = report["cells"]
    for messages in (short["messages"], long["messages"]):  # lengths are varints: two of one more byte
        assert sum(messages.values()) == pytest.approx(sum(short["messages"].values()), abs=16)
    for connection in ("draft", "target", "redis"):
        assert long["bytes"][connection] == pytest.approx(short["bytes"][connection], rel=0.1)
    assert [(run["coordinators"], run["gamma"]) for run in report["carried"]] == [(1, 5), (2, 5), (1, 0), (2, 0)]
    assert all(run["rounds_a_core"] > run["rounds_a_second"] / 2 > 0 for run in report["carried"])
