"""The pair benchmark's section says what its JSON says, and needs nothing else."""

import json

import pytest

from benchmarks.output import rounded
from benchmarks.pair import cell, main, parse, plan_of
from benchmarks.pair_goals import ALL, kept
from benchmarks.pair_plan import Case
from benchmarks.pair_section import section
from benchmarks.recording import Inside, Recording, Round

ARGUMENTS = ["--target", "T", "--draft", "D", "--kind", "chat", "edit", "--gamma", "2", "--temperature", "0"]
WAYS = ["gamma 0", "gamma 2", "adaptive", "gamma 0 again", "generate", "assisted"]
# kind: seconds of a round with two draft tokens that both stand, where plain decoding takes 0.1 a token
PACE = {"chat": 0.6, "edit": 0.15}


def answer(gamma, seconds, unseen=0.0):
    """Rounds whose draft tokens all stand; unseen seconds are none of the model's."""
    inside = Inside(forward=seconds)
    rounds = [Round(gamma, gamma, gamma + 1, 1 + (seconds + unseen) * place, target=inside) for place in range(11)]
    return Recording((1,), tuple(range(11 * (gamma + 1))), tuple(rounds))


def library(seconds):
    return Recording((1,), tuple(range(11)), tuple(Round(0, 0, 1, 1 + seconds * place) for place in range(11)))


def answers_to(kind):
    own = {"gamma 0": answer(0, 0.1), "gamma 2": answer(2, PACE[kind]), "adaptive": answer(2, PACE[kind], 0.05)}
    own["gamma 0 again"] = answer(0, 0.08)
    return own | {"generate": library(0.09), "assisted": library(0.2)}


def report(differences=(), fallbacks=0):
    plan = plan_of(parse(ARGUMENTS))
    answers = {Case(kind, lap, 0.0): answers_to(kind) for kind in plan.kinds for lap in range(2)}
    cells = [cell(plan, answers, kind, 0.0, way) for kind in (*plan.kinds, ALL) for way in WAYS]
    cells[1]["fallback_rounds"] += fallbacks
    draft = {"draft": "D", "ways": WAYS, "greedy_cases": 4, "differences": list(differences), "cells": cells}
    draft["passes"] = [{"tokens": 1, "milliseconds": 100.0}, {"tokens": 3, "milliseconds": 250.0}]
    machine = {"cpu": "CPU", "cores": 2, "logical_cores": 4, "memory_gib": 8.0, "gpus": [], "load_average": 0.1}
    facts = {"date": "2026-01-02", "command": "python -m x", "commit": "abc", "versions": {"torch": "2"}}
    facts |= {"tracing": "off", "environment": {}, "machine": machine, "seconds": 3.0}
    settings = {"threads": 2, "laps": 2, "max_new_tokens": 48, "verification": "block", "ignore_eos": False}
    settings["temperatures"] = [0.0]
    return rounded(
        {
            "benchmark": "pair",
            "pair": "p",
            **facts,
            "settings": settings,
            "models": {"target": {"name": "T"}},
            "drafts": [draft],
        }
    )


def test_where_speculation_loses_is_said():
    text = section(report())
    assert "Speculation loses in 2 of 4 settings." in text
    again, generate = "1.25 (1.25–1.25)", "1.11 (1.11–1.11)"
    assert f"| chat, 0 | 10.0 | 0.50 (0.50–0.50) | 0.46 (0.46–0.46) | {again} | **{generate}** | 0.50" in text
    assert "| edit, 0 | 10.0 | **2.00 (2.00–2.00)** | **1.50 (1.50–1.50)** | 1.25 (" in text
    assert f"| chat, 0 | none | gamma 0 | 1 | {again} |" in text
    assert f"| edit, 0 | `D` | gamma 2 | **2.00 (2.00–2.00)** | {again} |" in text


def test_what_is_kept_is_said():
    text = section(report())
    assert "| edit, 0 | 2.00 | 2.00 | 2 | 1.000 | 1.50 | 0.750 | 1.80 | 4.00 |" in text
    assert "| chat, 0 | 1.00 | 1.00 | 0 | 1.000 | 0.46 | 0.462 | 0.90 | 2.00 |" in text  # plain decoding is best
    assert "keeps of what α and the passes allow is 1.00 or more in all 3 settings and meets 0.95." in text
    assert "Against gamma 0 it meets 0.97 in 2 of 3 settings and misses it at chat, 0: 0.46" in text


def test_misses_have_their_measured_reasons():
    text = section(report())
    assert "At chat, 0 draft tokens came in 20 of 20 adaptive rounds, 2.0 at a time; a round had 3.00 tokens" in text
    assert "where gamma 0, the best, had 1.00 tokens for 0.0 ms of Verify; an answer has 10 rounds to learn in." in text
    assert "The best way against plain generate meets 1 in 2 of 3 settings and misses it at chat, 0: 0.90." in text
    assert (
        "At chat, 0 generate takes 90.0 ms a token and gamma 0 100.0 ms: in its rounds the target works 100.0" in text
    )
    assert "At edit, 0 generate" not in text
    assert "it has 1.00 tokens a round" not in text  # assisted generation is beaten everywhere
    slow = report()
    for one in slow["drafts"][0]["cells"]:
        if one["way"] == "gamma 2" and one["kind"] == "edit":
            one["speedup"] = dict.fromkeys(one["speedup"], 1.8)
            one["milliseconds"] |= {"propose_call": 30.0, "draft": 20.0, "verify_call": 155.0, "target": 150.0}
        if one["way"] == "assisted" and one["kind"] == "edit":
            one["speedup"] = dict.fromkeys(one["speedup"], 1.7)
    text = section(slow)
    assert "At edit, 0 a round of gamma 2, which allows most, waits 10.0 ms of Propose and 5.0 ms of Verify for" in text
    assert "At edit, 0 it has 1.00 tokens a round where gamma 2 has 3.00, and plain generate is 1.11 times" in text


def test_an_adaptive_answer_that_hardly_drafted_gains_nothing():
    plain = report()
    for one in plain["drafts"][0]["cells"]:
        if one["way"] == "adaptive":
            one |= {"draft_tokens_a_round": 0.09, "speedup": dict.fromkeys(one["speedup"], 9.0)}
    text = section(plain)
    assert "Speculation loses in 1 of 2 settings." in text
    assert "| chat, 0 | none | gamma 0 | 1 |" in text
    assert "| edit, 0 | `D` | gamma 2 |" in text
    assert "| chat, 0 | 1.00 | 1.00 | 0 | 1.000 | 9.00 | 9.000 | 0.90 | 2.00 |" in text


def test_what_the_comparisons_cannot_tell_is_said():
    text = section(report())
    assert "asked again against gamma 0: chat, 0: 1.25 (1.25–1.25); edit, 0: 1.25" in text
    assert "**Gamma 0 again** is the same asked a second time" in text
    assert "different texts" not in text
    warm = report()
    warm["settings"]["temperatures"] = [0.0, 0.7]
    assert "Above temperature 0 the ways draw other texts than gamma 0" in section(warm)
    warm["settings"]["verification"] = "coupled"
    assert "Above temperature 0 adaptive answers and those of Hugging Face draw other" in section(warm)


def test_a_report_from_before_noise_was_measured_is_shown():
    old = report()
    draft = old["drafts"][0]
    draft["ways"].remove("gamma 0 again")
    draft["cells"] = [one for one in draft["cells"] if one["way"] != "gamma 0 again"]
    for one in draft["cells"]:
        one.get("milliseconds", {}).pop("target_forward", None)
    text = section(old)
    assert "Noise" not in text
    assert "| edit, 0 | `D` | gamma 2 | **2.00 (2.00–2.00)** | – |" in text


def test_without_hugging_face_there_is_nothing_to_compare_with():
    cells = {one["way"]: one for one in report()["drafts"][0]["cells"] if one["kind"] == "edit"}
    assert kept(cells)["against_assisted"] == pytest.approx(4)
    del cells["assisted"]
    assert kept(cells)["against_assisted"] is None
    cells["adaptive"]["speedup"] = None
    assert kept(cells) is None


def test_all_holds_every_kind():
    assert "| all, 0 | 10.0 | **1.25 (0.50–2.00)** | 0.98 (0.46–1.50) |" in section(report())


@pytest.mark.parametrize(
    ("gaps", "said"),
    [
        ([], "Greedy token ids equal those of gamma 0 in all 12 comparisons."),
        (
            [0.002, 0.0005],
            "in 2 of 12 comparisons, each at a near-tie (at most 2.0e-03 nats between the two tokens).",
        ),
        ([0.002, 0.5], "in 2 of 12 comparisons, and 1 of them are no near-ties.**"),
        ([None], "in 1 of 12 comparisons, and 1 of them are no near-ties.**"),
    ],
)
def test_greedy_differences_are_said(gaps, said):
    text = section(report([{"way": "gamma 2", "gap": gap} for gap in gaps]))
    assert said in text
    assert "Those of Hugging Face equal those of gamma 0 in all 8 comparisons." in text


def test_differences_of_hugging_face_are_said_apart():
    text = section(report([{"way": "assisted", "gap": 0.002}]))
    assert "Greedy token ids equal those of gamma 0 in all 12" in text
    assert "Those of Hugging Face differ from those of gamma 0 in 1 of 8 comparisons, each at a near-tie" in text


def test_rounds_without_their_draft_are_said():
    assert "**3 rounds had no draft although they should have.**" in section(report(fallbacks=3))
    assert "should have" not in section(report())


def test_the_cost_of_a_pass_is_said():
    assert "Milliseconds of a target pass by the tokens in it: 1: 100.0, 3: 250.0." in section(report())


def test_acceptance_seen_too_seldom_is_not_shown():
    # 11 rounds of 2 answers reached both positions; with one answer's first round alone none would be shown.
    assert "| edit, 0 | 1.00 | 1.00 |" in section(report())
    few = report()
    few["drafts"][0]["cells"][len(WAYS) + 1]["acceptance"][1] = {"reached": 9, "accepted": 9, "rate": 1.0}
    assert "| edit, 0 | 1.00 | – |" in section(few)


def test_a_section_is_made_anew_from_its_json_alone(tmp_path, capsys):
    source, results = tmp_path / "pair.json", tmp_path / "RESULTS.md"
    source.write_text(json.dumps(report()))
    assert main(["--from", str(source), "--write", "--results", str(results)]) == 0
    assert section(report()) in results.read_text()
    assert json.loads(capsys.readouterr().out) == report()
