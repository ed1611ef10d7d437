"""Adaptive answers beside others of another kind: a lookup draft, short answers in open prose and edits, in turns."""

import random
from dataclasses import dataclass
from functools import cache

from coordinator.experience import Experience
from coordinator.gamma import Adaptive, Fixed
from coordinator.rounds import Drafted, Round, Verdict
from draft_service.lookup import LONGEST
from draft_service.survival import Stop, TrackRecord, lookup_grade
from specdec.parameters import Verification

MAX_GAMMA = 16
LENGTH = 100  # committed tokens
ROUNDS, ANSWERS, WARM = 40, 60, 5  # rounds of an answer; answers of each kind, and how many of them do not count
PROPOSE_SECONDS, CALL_SECONDS = 0.0015, 0.0015
STANDS = {1: 0.22, 2: 0.4, 3: 0.7, 4: 0.8, 5: 0.85, 6: 0.9, 7: 0.9, 8: 0.97}  # by tokens that match; so it was measured


@dataclass(frozen=True)
class Kind:
    """Of answer: how often so many tokens match at the begin of a proposal; else nothing does."""

    matches: dict[int, float]


PROSE = Kind({1: 0.35, 2: 0.08})
EDIT = Kind({1: 0.25, 2: 0.1, 8: 0.5})


def pass_seconds(draft_tokens):
    """Return what the target takes: a second token is dear, further ones are cheap."""
    return 0.045 if draft_tokens == 0 else 0.057 + 0.003 * draft_tokens


def draft(kind, gamma, stop, rng):
    """Propose as a lookup does; return the chance of each draft token to stand."""
    numbers, weights = zip(*kind.matches.items(), strict=True)
    matched = rng.choices((0, *numbers), (1 - sum(weights), *weights))[0]
    chances = []
    while matched and len(chances) < gamma and stop.takes(lookup_grade(matched)):
        stop.add(lookup_grade(matched))
        chances.append(STANDS[matched])
        matched = min(matched + 1, LONGEST)
    return chances


def answer(kind, policy, record, number, *, bounded):
    """Generate an answer; return its seconds a token. Its rounds meet the same luck whatever is proposed."""
    tokens = seconds = 0.0
    for index in range(ROUNDS):
        rng = random.Random(f"{number} {index}")
        gamma = policy.choose(MAX_GAMMA, LENGTH)
        stop = record.stop(Verification.BLOCK, greedy=False, bounds=policy.min_survival) if bounded else Stop()
        chances = draft(kind, gamma, stop, rng) if gamma else []
        kept = next((index for index, chance in enumerate(chances) if rng.random() > chance), len(chances))
        for grade in stop.left_out:
            stop.calibration.leave_out(grade)
        stop.calibration.learn(stop.grades, kept)
        proposing, verifying = PROPOSE_SECONDS * (gamma > 0), CALL_SECONDS + pass_seconds(len(chances))
        noise = 1 + 0.05 * rng.random()
        drafted = Drafted([7] * len(chances), asked=gamma, reused_length=99, seconds=proposing * noise)
        told = {"seconds": verifying * noise, "pass_seconds": (verifying - CALL_SECONDS) * noise}
        verdict = Verdict(kept, 7, reused_length=99, pass_tokens=1 + len(chances), **told)
        policy.observe(Round(0, 100, drafted, verdict))
        tokens += 1 + kept
        seconds += proposing + verifying
    policy.close()
    return seconds / tokens


def in_turns(make_policy, *, bounded):
    """Return tokens a second of each kind, of one coordinator that has both."""
    record = TrackRecord(8)
    paces = {PROSE.matches[1]: [], EDIT.matches[1]: []}
    for number in range(ANSWERS):
        for kind in (PROSE, EDIT):
            paces[kind.matches[1]].append(answer(kind, make_policy(), record, number, bounded=bounded))
    return [len(each[WARM:]) / sum(each[WARM:]) for each in paces.values()]


@cache
def fixed(gamma):
    return in_turns(lambda: Fixed(Experience(), gamma, shared=True), bounded=False)


def adaptive(*, bounded):
    experience = Experience()
    return in_turns(lambda: Adaptive(experience, shared=True), bounded=bounded)


def test_both_kinds_come_near_their_best_and_prose_is_not_slowed():
    prose, edit = adaptive(bounded=True)
    assert prose >= 0.97 * fixed(0)[0]
    assert edit >= 0.95 * max(fixed(gamma)[1] for gamma in (0, 1, 2, 4, 8, 16))


def test_control_no_fixed_gamma_does():
    for gamma in (0, 1, 2, 4, 8, 16):
        prose, edit = fixed(gamma)
        assert prose < 0.97 * fixed(0)[0] or edit < 0.95 * max(fixed(other)[1] for other in (4, 8, 16))


def test_control_without_bounds_prose_pays_for_the_edits_of_others():
    assert adaptive(bounded=False)[0] < 0.96 * fixed(0)[0]
