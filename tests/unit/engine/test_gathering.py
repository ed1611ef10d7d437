"""A pass waits for who is due where that spares more than it costs, and for nobody else."""

import pytest

from specdec.model.gathering import Gathering, PassCost

REST, ONCE, TOKEN = 0.010, 0.050, 0.001


@pytest.fixture
def known(clock):
    """A gathering that has seen passes over 1 and 8 sessions of one token, and rests."""
    known = Gathering()
    for number in range(200):
        sessions = (1, 8)[number % 2]
        known.passed(sessions, sessions, ONCE + TOKEN * sessions)
        known.rested(REST)
    return known


def test_nobody_is_waited_for_who_is_not_known_to_come(clock):
    assert Gathering().wait_seconds([clock.now], 1) == 0.0


def test_what_is_paid_once_is_told_from_what_is_paid_for_each_token():
    cost = PassCost()
    for number in range(200):
        tokens = (1, 8, 64)[number % 3]
        cost.observe(tokens, ONCE + TOKEN * tokens)
    assert (cost.once, cost.token) == (pytest.approx(ONCE, rel=0.01), pytest.approx(TOKEN, rel=0.01))


def test_passes_of_one_size_are_taken_to_cost_the_same_whoever_is_in_them():
    cost = PassCost()
    for _ in range(5):
        cost.observe(4, ONCE)
    assert (cost.once, cost.token) == (pytest.approx(ONCE), 0.0)


@pytest.mark.parametrize(
    ("elapsed", "ready", "wait"),
    [
        ([0.000], 1, 0.010),  # 50 spared, 2 × 10 waited, 1 for the other's token
        ([0.000], 4, 0.0),  # 50 spared, 5 × 10 waited
        ([0.005], 4, 0.005),
        ([0.000] * 8, 8, 0.010),
        ([0.009, 0.000], 4, 0.001),  # 41 are won by the first, 32 by both
        ([0.011], 1, 0.0),  # who has not come by now may not come
    ],
)
def test_a_wait_is_worth_the_passes_it_spares(clock, known, elapsed, ready, wait):
    since = [clock.now - seconds for seconds in elapsed]
    assert known.wait_seconds(since, ready) == pytest.approx(wait, abs=1e-6)


def test_where_tokens_are_what_a_pass_costs_nobody_is_waited_for(clock):
    dear = Gathering()
    for number in range(200):
        sessions = (1, 8)[number % 2]
        dear.passed(sessions, sessions, ONCE * sessions)
        dear.rested(REST)
    assert dear.wait_seconds([clock.now] * 8, 8) == 0.0


def test_rests_that_vary_are_waited_for_longer_and_long_ones_hardly_count(clock, known):
    for number in range(200):
        known.rested(REST * (0.5, 1.5)[number % 2])
    assert known.wait_seconds([clock.now], 1) == pytest.approx(2 * REST, rel=0.1)
    known.rested(3600.0)
    assert known.wait_seconds([clock.now], 1) < 3 * REST


def test_a_call_that_came_before_the_last_had_ended_is_no_rest(clock, known):
    for seconds in (-5.0, *[REST] * 100):
        known.rested(seconds)
    assert known.wait_seconds([clock.now], 1) == pytest.approx(REST)
