"""The pair benchmark's section says what its JSON says, and needs nothing else."""

import json

import pytest

from benchmarks.output import rounded
from benchmarks.pair import ALL, cell, main, parse, plan_of
from benchmarks.pair_run import Case
from benchmarks.pair_section import section
from benchmarks.recording import Inside, Recording, Round

ARGUMENTS = ["--target", "T", "--draft", "D", "--kind", "chat", "edit", "--gamma", "2", "--temperature", "0"]
# kind: seconds of a round with two draft tokens that both stand, where plain decoding takes 0.1 a token
PACE = {"chat": 0.6, "edit": 0.15}


def answer(gamma, seconds):
    rounds = [
        Round(gamma, gamma, gamma + 1, 1 + seconds * number, 0.0, seconds, target=Inside(forward=seconds))
        for number in range(11)
    ]
    return Recording((1,), tuple(range(11 * (gamma + 1))), tuple(rounds))


def report(differences=(), fallbacks=0):
    plan = plan_of(parse(ARGUMENTS))
    answers = {
        Case(kind, lap, 0.0): {0: answer(0, 0.1), 2: answer(2, PACE[kind])} for kind in plan.kinds for lap in range(2)
    }
    cells = [cell(answers, kind, 0.0, gamma) for kind in (*plan.kinds, ALL) for gamma in plan.gammas]
    cells[1]["fallback_rounds"] += fallbacks
    draft = {"draft": "D", "greedy_compared": 4, "differences": list(differences), "cells": cells}
    draft["passes"] = [{"tokens": 1, "milliseconds": 100.0}, {"tokens": 3, "milliseconds": 250.0}]
    machine = {"cpu": "CPU", "cores": 2, "logical_cores": 4, "memory_gib": 8.0, "gpus": [], "load_average": 0.1}
    facts = {
        "date": "2026-01-02",
        "command": "python -m x",
        "commit": "abc",
        "versions": {"torch": "2"},
        "tracing": "off",
    }
    settings = {"threads": 2, "laps": 2, "max_new_tokens": 48, "verification": "block", "ignore_eos": False}
    return rounded(
        {"pair": "p", **facts, "seconds": 3.0, "machine": machine, "environment": {}, "settings": settings}
        | {"models": {"target": {"name": "T"}}, "drafts": [draft]}
    )


def test_where_speculation_loses_is_said():
    text = section(report())
    assert "Speculation loses in 1 of 2 settings." in text
    assert "| chat, 0 | 10.0 | 0.50 (0.50–0.50) |" in text
    assert "| edit, 0 | 10.0 | **2.00 (2.00–2.00)** |" in text
    assert "| chat, 0 | none | 0 | 1 |" in text
    assert "| edit, 0 | `D` | 2 | **2.00 (2.00–2.00)** |" in text


def test_all_holds_every_kind():
    assert "| all, 0 | 10.0 | **1.25 (0.50–2.00)** |" in section(report())


@pytest.mark.parametrize(
    ("gaps", "said"),
    [
        ([], "equal those of gamma 0 in all 4 comparisons."),
        (
            [0.002, 0.0005],
            "in 2 of 4 comparisons, each at a near-tie (at most 2.0e-03 nats between the two tokens).",
        ),
        ([0.002, 0.5], "in 2 of 4 comparisons, and 1 of them are no near-ties.**"),
        ([None], "in 1 of 4 comparisons, and 1 of them are no near-ties.**"),
    ],
)
def test_greedy_differences_are_said(gaps, said):
    assert said in section(report([{"gap": gap} for gap in gaps]))


def test_rounds_without_their_draft_are_said():
    assert "**3 rounds had no draft although they should have.**" in section(report(fallbacks=3))
    assert "should have" not in section(report())


def test_the_cost_of_a_pass_is_said():
    assert "Milliseconds of a target pass by the tokens in it: 1: 100.0, 3: 250.0." in section(report())


def test_acceptance_seen_too_seldom_is_not_shown():
    # 11 rounds of 2 answers reached both positions; with one answer's first round alone none would be shown.
    assert "| edit, 0 | 1.00 | 1.00 |" in section(report())
    few = report()
    few["drafts"][0]["cells"][3]["acceptance"][1] = {"reached": 9, "accepted": 9, "rate": 1.0}
    assert "| edit, 0 | 1.00 | – |" in section(few)


def test_a_section_is_made_anew_from_its_json_alone(tmp_path, capsys):
    source, results = tmp_path / "pair.json", tmp_path / "RESULTS.md"
    source.write_text(json.dumps(report()))
    assert main(["--from", str(source), "--write", "--results", str(results)]) == 0
    assert section(report()) in results.read_text()
    assert json.loads(capsys.readouterr().out) == report()
