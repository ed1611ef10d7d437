"""Passes ahead give way to a call that is due, unless they are likely enough to be of use."""

import pytest

from specdec.model.rest_times import RestTimes


@pytest.fixture
def times(clock):
    times = RestTimes()
    times.rested(0.030)
    times.passed(0.010)
    return times


def test_without_experience_every_pass_is_worth_it(clock):
    times = RestTimes()
    times.passed(0.010)
    assert times.worth_a_pass(0.0, [clock.now])


@pytest.mark.parametrize(
    ("elapsed", "needed"), [(0.0, 0.0), (0.019, 0.0), (0.022, 0.2), (0.025, 0.5), (0.029, 0.9), (0.041, 0.0)]
)
def test_a_pass_is_worth_what_it_spares_and_costs_what_calls_wait(clock, times, elapsed, needed):
    since = [clock.now - elapsed]
    assert times.worth_a_pass(needed + 0.01, since)
    assert times.quiet_seconds == 0
    if needed:
        assert not times.worth_a_pass(needed - 0.01, since)
        assert times.quiet_seconds == pytest.approx(0.010)
        clock.now += 0.011
        assert times.quiet_seconds == 0


def test_the_waits_of_all_calls_that_are_due_count(clock, times):
    since = clock.now - 0.024
    assert times.worth_a_pass(0.5, [since, clock.now])
    assert not times.worth_a_pass(0.5, [since, since])


def test_experience_follows_slowly(clock, times):
    for _ in range(100):
        times.rested(0.3)
    assert times.worth_a_pass(0.0, [clock.now - 0.025])
