"""The pair benchmark finds the acceptance that the synthetic pair is known to have, through the real services."""

import json
import math

import pytest

from benchmarks.pair import main
from benchmarks.pair_section import section

MODEL = "synthetic:vocabulary=512,seed=1"
AGREEMENT, OTHER = 0.67, 0.3
GAMMA = 5
KINDS, LAPS, TOKENS = ("chat", "edit"), 3, 64
WAYS = ["gamma 0", f"gamma {GAMMA}", "adaptive", "gamma 0 again"]
ANSWERS = LAPS * len(KINDS)
# Standard errors; the outcome is the same in every run, for the seeds are fixed.
WITHIN = 4


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """Standard output as JSON, and the file the section went to."""
    results = tmp_path_factory.mktemp("benchmark") / "RESULTS.md"
    arguments = ["--target", MODEL, "--gamma", str(GAMMA), "--temperature", "1", "0", "--verification", "token"]
    for agreement in (AGREEMENT, OTHER):
        arguments += ["--draft", f"{MODEL},agreement={agreement}"]
    arguments += ["--kind", *KINDS, "--laps", str(LAPS), "--max-new-tokens", str(TOKENS), "--ignore-eos"]
    arguments += ["--threads", "1"]
    with pytest.MonkeyPatch.context() as patch:
        printed = []
        patch.setattr("sys.stdout.write", printed.append)
        assert main([*arguments, "--write", "--results", str(results)]) == 0
    return json.loads("".join(printed)), results


def speculating(report, draft, temperature=1.0, kind="all"):
    (found,) = [
        cell
        for cell in report["drafts"][draft]["cells"]
        if (cell["kind"], cell["temperature"], cell["way"]) == (kind, temperature, f"gamma {GAMMA}")
    ]
    return found


def far_off(acceptance, chance):
    """Positions whose rate is more standard errors from the chance than a right one may be."""
    return [
        index
        for index, one in enumerate(acceptance)
        if abs(one["rate"] - chance) > WITHIN * math.sqrt(chance * (1 - chance) / one["reached"])
    ]


def test_acceptance_is_the_agreement_at_every_position(measured):
    acceptance = speculating(measured[0], 0)["acceptance"]
    assert len(acceptance) == GAMMA
    assert not far_off(acceptance, AGREEMENT)


def test_another_draft_has_another_acceptance(measured):
    acceptance = speculating(measured[0], 1)["acceptance"]
    assert not far_off(acceptance, OTHER)
    assert far_off(acceptance, AGREEMENT)


def test_tokens_a_round_are_what_the_acceptance_makes(measured):
    """E = 1 + α + … + α^γ, with the standard error of as many rounds; the answers' clamped ends take a little."""
    report, _ = measured
    for draft, chance in enumerate((AGREEMENT, OTHER)):
        cell = speculating(report, draft)
        tails = [chance**index for index in range(GAMMA + 1)]
        expected = sum(tails)
        variance = sum((2 * index + 1) * tail for index, tail in enumerate(tails)) - expected**2
        clamped = cell["answers"] * GAMMA / cell["rounds"]  # at most this much a round
        bound = WITHIN * math.sqrt(variance / cell["rounds"])
        assert expected - bound - clamped <= cell["tokens_a_round"] <= expected + bound


def test_greedy_text_is_that_of_gamma_0(measured):
    for draft in measured[0]["drafts"]:
        assert draft["greedy_cases"] == ANSWERS
        assert draft["ways"] == WAYS
        assert draft["differences"] == []


def test_every_answer_is_counted(measured):
    for draft in measured[0]["drafts"]:
        for cell in draft["cells"]:
            answers = ANSWERS if cell["kind"] == "all" else LAPS
            assert (cell["answers"], cell["tokens"], cell["fallback_rounds"]) == (answers, TOKENS * answers, 0)
            assert cell["tokens_a_second"]["low"] > 0


def test_the_section_is_written_from_the_json(measured):
    report, results = measured
    assert section(report) in results.read_text()
    assert report["versions"]["redis-server"]
