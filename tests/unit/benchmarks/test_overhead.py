"""What the overhead benchmark asks and how it sums up, on rounds made by hand."""

import json
from collections import Counter

import pytest

from benchmarks.ahead import CountedAsk
from benchmarks.command import Benchmark, run
from benchmarks.output import rounded
from benchmarks.overhead import parse, plan_of
from benchmarks.overhead_cold import BUSY, CALL, DRAW, ITSELF, SLEEP, deciding, drawing, floor_ms, propose, verdict
from benchmarks.overhead_run import Point, Way, ask_laps, figures, request
from benchmarks.overhead_section import grids, section
from benchmarks.recording import Inside, Recording, Round
from specdec.v1 import common_pb2

POINT = Point(draft_ms=5, target_ms=30, alpha=0.67)
PLAIN, FIVE = Way(0, "block", 0), Way(5, "block", 0)
MACHINE = {"cpu": "CPU", "cores": 2, "logical_cores": 4, "memory_gib": 8.0, "gpus": [], "load_average": 0.1}


def answer(gamma, accepted, milliseconds):
    """Rounds of 60 and 33 ms when nothing but the given milliseconds is added; the last one has no draft tokens."""
    seconds = (5 * gamma + 30 + milliseconds) / 1000
    inside = {"draft": Inside(forward=0.005 * gamma), "target": Inside(queue=0.001, forward=0.030)}
    calls = {"propose_seconds": 0.005 * gamma, "verify_seconds": 0.032}
    gammas = [gamma] * 5 + [0]
    rounds = [
        Round(n, min(n, accepted), min(n, accepted) + 1, 1 + place * seconds, **inside, **calls)
        for place, n in enumerate(gammas)
    ]
    return Recording((), tuple(range(sum(one.emitted for one in rounds))), tuple(rounds))


def test_efficiency_is_what_the_models_are_set_to_take_over_what_a_round_took():
    plain, five = answer(0, 0, 2), answer(5, 2, 5)
    found = figures(POINT, FIVE, [five, five], [plain, plain])
    assert found["efficiency"]["median"] == pytest.approx(55 / 60)
    assert found["round_ms"]["median"] == pytest.approx(60)
    assert (found["rounds"], found["tokens_a_round"]) == (8, 3)  # neither the first round nor the short last one
    assert found["speedup"]["median"] == found["speedup_in_all"] == pytest.approx(3 * 32 / 60)
    assert found["expected_speedup"] == pytest.approx(1.503, abs=5e-4)
    assert figures(POINT, PLAIN, [plain], [plain])["efficiency"]["median"] == pytest.approx(30 / 32)


def test_the_parts_of_a_round_are_the_round():
    parts = figures(POINT, FIVE, [answer(5, 2, 5)], [answer(0, 0, 2)])["milliseconds"]
    assert sum(parts.values()) == pytest.approx(60)
    assert parts["verify_call"] == pytest.approx(1)
    assert parts["between_calls"] == pytest.approx(60 - 25 - 32)


def test_an_added_round_trip_is_expected():
    found = figures(POINT, Way(5, "block", 10), [answer(5, 2, 20)], [answer(0, 0, 10)])
    assert found["efficiency"]["median"] == pytest.approx(1)


def test_every_lap_asks_every_way_with_one_seed_and_begins_with_another():
    asked = []

    def ask(way):
        return lambda message: asked.append((way.gamma, message.sampling_params.seed)) or answer(way.gamma, 0, 0)

    answers = ask_laps({way: ask(way) for way in (PLAIN, FIVE)}, 0.67, 10, 2, lambda: None)
    assert asked == [(0, 0), (5, 0), (0, 1), (5, 1), (5, 2), (0, 2)]
    assert [len(found) for found in answers.values()] == [2, 2]


def test_answers_have_as_many_rounds_with_every_gamma():
    plain, five = (request(way, 0.67, 40, 7) for way in (PLAIN, FIVE))
    assert (plain.sampling_params.max_new_tokens, five.sampling_params.max_new_tokens) == (40, 110)
    assert plain.sampling_params.seed == five.sampling_params.seed == 7
    assert five.speculation.verification == common_pb2.VERIFICATION_BLOCK
    assert five.sampling_params.ignore_eos


def test_ways_of_a_lap():
    plan = plan_of(parse(["--verification", "token", "coupled", "--round-trip", "10", "--ahead-tokens", "24"]))
    assert [(one.gamma, one.verification, one.round_trip_ms, one.ahead) for one in plan.ways] == [
        (0, "token", 0, False),
        (5, "token", 0, False),
        (5, "token", 0, True),
        (5, "coupled", 0, False),
        (5, "coupled", 0, True),
        (0, "token", 10, False),
        (5, "coupled", 10, False),
        (5, "coupled", 10, True),
    ]
    assert not [one for one in plan_of(parse(["--ahead-tokens", "0"])).ways if one.ahead]


def cold():
    """Draws of 1, verdicts of 1 and 2, calls of 1.5 ms; once and twice as much after waits."""
    works, factors = (
        {DRAW: (1.0, 5.0), verdict(0): (1.0, 30.0), verdict(5): (2.0, 30.0), CALL: (1.5, 30.0)},
        {ITSELF: 1, BUSY: 1.5, SLEEP: 2},
    )
    return [
        {
            "what": what,
            "after": after,
            "wait_ms": wait,
            "milliseconds": dict.fromkeys(("low", "median", "high"), ms * factor),
        }
        for what, (ms, wait) in works.items()
        for after, factor in factors.items()
    ]


@pytest.fixture
def report():
    ways = [
        figures(POINT, way, [answer(way.gamma, 2, 5)], [answer(0, 0, 2)])
        for way in (PLAIN, FIVE, Way(5, "coupled", 10, ahead=True))
    ]
    ways[2]["gain"] = {"low": 1.2, "median": 1.25, "high": 1.3}
    counted = CountedAsk(lambda _: answer(5, 2, 5), "", Counter(hits=8, misses=2, tokens=900, used=45))
    ways[2]["drafted_ahead"] = counted.figures(10)
    settings = {"point": {"draft_ms": 5.0, "target_ms": 30.0, "alpha": 0.67}, "laps": 1, "rounds": 6}
    cell = {"draft_ms": 15.0, "alpha": 0.9}
    facts = {"date": "2026-01-02", "command": "python -m x", "commit": "abc", "versions": {"torch": "2"}}
    facts |= {"tracing": "off", "environment": {}, "machine": MACHINE, "seconds": 3.0}
    return rounded(
        {"benchmark": "overhead", **facts, "settings": settings, "ways": ways, "cold": cold(), "grid": [cell | ways[1]]}
    )


def test_the_section_says_what_the_json_says(report):
    text = section(report)
    assert "| γ 5, BLOCK | 4 | 3.000 | 2.756 | 60.00 (60.00–60.00) | 55.0 | 0.917 (0.917–0.917) |" in text
    assert "| γ 5, COUPLED, ahead, +10 ms |" in text
    assert "| 0.50, 0.9, 0 | 5 | 3.00 | 2.76 |" in text
    assert "| COUPLED, +10 ms | 1.250 (1.200–1.300) | 0.80 | 4.50 | 90.0 |" in text
    assert len(grids(report | {"grid": [], "ways": report["ways"][:2]})) == 3


def test_section_and_json_are_kept_beside_each_other(report, tmp_path, capsys):
    source, results = tmp_path / "a.json", tmp_path / "RESULTS.md"
    source.write_text(json.dumps(report))

    def measure(options, arguments):
        raise AssertionError("it was measured before")

    benchmark = Benchmark("overhead", parse, measure, lambda _: "pair:Qwen/Q", section, grids)
    assert run(benchmark, ["--from", str(source), "--write", "--results", str(results)]) == 0
    assert section(report) in results.read_text()
    assert json.loads((tmp_path / "results" / "pair-Qwen-Q.json").read_text()) == report
    assert json.loads(capsys.readouterr().out) == report
    results.write_text(results.read_text() + "<!-- pair:Qwen/Q -->\n")
    (tmp_path / "results" / "pair-Qwen-Q.json").unlink()
    assert run(benchmark, ["--from", str(source), "--write", "--results", str(results)]) == 1
    assert "What was measured is in" in " ".join(capsys.readouterr().err.split())
    assert json.loads((tmp_path / "results" / "pair-Qwen-Q.json").read_text()) == report
    source.write_text("{")
    assert run(benchmark, ["--from", str(source)]) == 1
    assert "cannot be read" in " ".join(capsys.readouterr().err.split())


def test_the_work_that_is_timed_is_a_round_s():
    proposal = propose(POINT, 5)
    assert proposal.gamma == len(proposal.draft_distributions) == 5
    [token] = drawing(POINT)().result.draft_tokens
    assert token == proposal.draft_tokens[0]
    assert 0 <= deciding(POINT, 5)().result.accept_index <= 5


def test_goals_are_compared_in_figures(report):
    text = section(report)
    assert "γ 0 is 0.857 efficient and misses 0.95: 5.0 ms beside the passes where 1.6 would do" in text
    assert "γ 5 BLOCK is 0.917 efficient and misses 0.97: 5.0 ms beside the passes where 1.7 would do" in text
    assert "would do, namely 1.0 the rest of the calls, 1.0 queues, 3.0 what lies between the calls. Its" in text
    assert "| verdict, γ 5, 30 ms | 2.00 (2.00–2.00) | 3.00 (3.00–3.00) | 4.00 (4.00–4.00) |" in text
    assert "what it takes right after itself: draw of a draft token 1.5; verdict, γ 0 1.5;" in text
    report["ways"][2]["round_trip_ms"] = 0
    assert "Drafting ahead with COUPLED is 1.25 times the sequential pace, which meets 1.25" in section(report)
    report["ways"][2]["gain"]["median"] = 1.2
    assert "misses 1.25: 80 % of the proposals were there already, and 4.5 tokens a round need not" in section(report)


def test_reasons_stand_only_where_a_goal_is_missed_and_they_were_measured(report):
    waited = "on this machine even on a core that was busy"
    report["ways"][0]["efficiency"]["median"] = 0.96
    assert "γ 0 is 0.960 efficient, which meets 0.95.\n- γ 5 BLOCK is" in section(report)
    for entry in report["cold"]:
        entry["milliseconds"] = {"low": 1.0, "median": 2.0, "high": 3.0}
    assert waited not in section(report)
    report["cold"] = cold()
    assert waited in section(report)
    report["ways"][1]["efficiency"]["median"] = 0.97
    met = section(report)
    assert "misses" not in met
    assert "namely" not in met
    assert waited not in met


def test_another_point_than_the_textbook_one_is_not_judged(report):
    report["settings"]["point"]["draft_ms"] = 6.0
    text = section(report)
    assert "There are goals for the textbook point alone, and this is another." in text
    assert "misses" not in text


def test_a_floor_is_never_above_what_it_bounds():
    parts = {"draft_sampling": 4.0, "target_sampling": 9.0, "propose_call": 2.0, "verify_call": 2.5}
    way = {"gamma": 5, "milliseconds": parts}
    assert floor_ms(cold(), way, ITSELF) == 4.0 + 2.0 + 3.0  # five draws took less in the rounds than apart
    assert floor_ms(cold(), way, BUSY) == 4.0 + 3.0 + 4.5
    assert floor_ms(cold(), way, SLEEP) == 4.0 + 4.0 + 4.5


def test_free_tokens_drafted_ahead_are_said(report):
    assert "are free here: 90.0 a round were, of which 4.5 were used. What drafting ahead gains is an upper" in section(
        report
    )
    assert "upper bound" not in section(report | {"ways": report["ways"][:2]})
