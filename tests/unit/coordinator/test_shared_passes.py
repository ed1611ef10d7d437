"""Answers that share the target's passes: what a draft token adds to one, all wait for."""

import random
from dataclasses import replace
from datetime import timedelta
from functools import cache

import pytest

from coordinator.experience import Experience
from coordinator.gamma import Adaptive, Fixed
from coordinator.model_clients import _verdict as verdict_of
from coordinator.rounds import Drafted, Round, Verdict
from specdec.v1 import common_pb2, target_pb2

MAX_GAMMA = 16
LENGTH = 100  # committed tokens
CALL_SECONDS, PASS_SECONDS, TOKEN_SECONDS = 0.001, 0.030, 0.004
STANDS = {"prose": (0.1, 0.15), "an edit": (0.95, 0.97)}  # a draft token; that a lookup knows another one


def together(text, make_policy, sessions, rounds, seed, *, told):
    """Return tokens a second of answers whose rounds share their passes.

    ``told`` makes of a verdict what the coordinator gets to know of it.
    """
    rng = random.Random(seed)
    stands, goes_on = STANDS[text]
    policies = [make_policy() for _ in range(sessions)]
    tokens = seconds = 0.0
    for _ in range(rounds):
        asked = [policy.choose(MAX_GAMMA, LENGTH) for policy in policies]
        proposed = [_run(goes_on, gamma, rng) for gamma in asked]
        kept = [_run(stands, gamma, rng) for gamma in proposed]
        fed = sessions + sum(proposed)
        forward = (PASS_SECONDS + TOKEN_SECONDS * fed) * (1 + 0.05 * rng.random())
        for policy, *numbers in zip(policies, asked, proposed, kept, strict=True):
            gamma, came, stood = numbers
            drafted = Drafted([7] * came, asked=gamma, reused_length=99, seconds=CALL_SECONDS if gamma else 0.0)
            told_seconds = {"seconds": CALL_SECONDS + forward, "pass_seconds": forward}
            verdict = Verdict(stood, 7, reused_length=99, pass_tokens=fed, **told_seconds)
            policy.observe(Round(0, 100, drafted, told(verdict, came)))
        tokens += sessions + sum(kept)
        seconds += forward + CALL_SECONDS * (2 if any(asked) else 1)
    for policy in policies:
        policy.close()
    return tokens / seconds


def _run(chance, most, rng):
    """Return how often in a row something happens, at most so often."""
    return next((number for number in range(most) if rng.random() >= chance), most)


def the_pass(verdict, came):
    return verdict


def its_own_tokens(verdict, came):
    return replace(verdict, pass_tokens=1 + came)


@cache
def best_and_plain(text, sessions):
    def fixed(gamma):
        return together(text, lambda: Fixed(Experience(), gamma, shared=True), sessions, 100, 1, told=the_pass)

    return max(map(fixed, (0, 1, 2, 4, 8))), fixed(0)


def adaptive(text, sessions, told):
    experience = Experience()
    for seed, rounds in ((2, 100), (3, 200)):
        pace = together(text, lambda: Adaptive(experience, shared=True), sessions, rounds, seed, told=told)
    return pace


@pytest.mark.parametrize("text", STANDS)
@pytest.mark.parametrize("sessions", [4, 64])
def test_a_draft_token_costs_what_it_costs_all_that_share_the_pass(text, sessions):
    best, plain = best_and_plain(text, sessions)
    pace = adaptive(text, sessions, the_pass)
    assert pace >= 0.95 * best
    assert pace >= 0.97 * plain


def test_control_by_the_tokens_of_each_alone_all_pay():
    best, plain = best_and_plain("an edit", 64)
    pace = adaptive("an edit", 64, its_own_tokens)
    assert pace < 0.95 * best
    assert pace < 0.97 * plain


def test_who_asks_the_draft_and_misses_the_pass_of_the_others_counts_what_that_takes():
    """A draft token stands as often as not and is free, but its answer waits for another pass: it loses."""
    rng, experience, asked = random.Random(4), Experience(), 0
    policies = [Adaptive(experience, shared=True) for _ in range(8)]
    for number in range(300):
        for policy in policies:
            gamma = min(policy.choose(MAX_GAMMA, LENGTH), 1)
            asked += gamma if number >= 100 else 0
            drafted = Drafted([7] * gamma, asked=gamma, reused_length=99, seconds=CALL_SECONDS * gamma)
            seconds = CALL_SECONDS + PASS_SECONDS * (1 + gamma)
            told = {"seconds": seconds, "pass_seconds": PASS_SECONDS, "pass_tokens": 8}
            verdict = Verdict(gamma * (rng.random() < 0.5), 7, reused_length=99, **told)
            policy.observe(Round(0, 100, drafted, verdict))
    assert asked < 0.05 * 200 * len(policies)


def test_what_a_pass_takes_is_its_forward_and_the_verification_of_all_in_it():
    timings = common_pb2.ServerTimings(pass_tokens=90)
    for part, seconds in ((timings.queue, 9.0), (timings.forward, 0.25), (timings.sampling, 0.5)):
        part.FromTimedelta(timedelta(seconds=seconds))
    found = verdict_of(target_pb2.VerifyResponse(next_token=7, timings=timings), None, 10.0)
    assert (found.pass_seconds, found.pass_tokens, found.seconds) == (0.75, 90, 10.0)
