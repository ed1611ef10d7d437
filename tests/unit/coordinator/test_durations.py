"""How long things take by their tokens: lines between what is known, kinds of great numbers, outliers and shares."""

import pytest

from coordinator.durations import EXACT, Durations


def test_durations_lie_on_lines_and_never_fall():
    durations = Durations()
    durations.observe(1, 2.0)
    assert durations.expected(5) == 2.0
    durations.observe(3, 4.0)
    assert [durations.expected(tokens) for tokens in (0, 1, 2, 3, 5)] == [1.0, 2.0, 3.0, 4.0, 6.0]


def test_neighbours_that_fall_are_of_their_common_mean():
    durations = Durations()
    for tokens, seconds in ((1, 1.0), (2, 9.0), (3, 3.0), (4, 3.0), (6, 8.0)):
        durations.observe(tokens, seconds)
    assert [durations.expected(tokens) for tokens in (1, 2, 3, 4, 5, 6)] == [1.0, 5.0, 5.0, 5.0, 6.5, 8.0]
    for _ in range(99):
        durations.observe(3, 3.0)
    assert durations.expected(2) < 3.1


def test_an_outlier_hardly_moves_a_duration():
    durations = Durations()
    for _ in range(100):
        durations.observe(0, 1.0)
    durations.observe(0, 1000.0)
    assert durations.expected(0) < 1.1


def test_great_numbers_near_each_other_are_one_kind_at_their_mean():
    durations = Durations()
    for tokens in (*range(EXACT), 64, 68, 72, 200):
        durations.observe(tokens, float(tokens))
    assert len(durations.means) == EXACT + 2
    assert durations.expected(68) == pytest.approx(68.0)
    assert durations.expected(134) == pytest.approx(134.0)


def test_what_many_tell_of_counts_once():
    whole, shared = Durations(), Durations()
    for seconds in (1.0, 2.0, 2.0, 1.0) * 30:
        whole.observe(4, seconds)
        for _ in range(8):
            shared.observe(4, seconds, 1 / 8)
    assert shared.means[4].weight == pytest.approx(whole.means[4].weight)
    assert shared.expected(4) == pytest.approx(whole.expected(4), rel=0.01)
