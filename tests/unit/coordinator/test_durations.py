"""How long things take by their tokens: lines between what is known, kinds of great numbers, outliers and shares."""

import pytest

from coordinator.durations import EXACT, Durations


def known(*seen, fixed=1.0):
    durations = Durations(fixed)
    for tokens, seconds in seen:
        durations.observe(tokens, seconds)
    return durations


def test_durations_lie_on_lines_between_and_beyond_what_is_known():
    durations = known((1, 2.0), (2, 2.5), (3, 4.0), (9, 10.0))
    assert [durations.expected(tokens) for tokens in (1, 1.5, 2, 3, 6, 9, 12)] == [2.0, 2.25, 2.5, 4.0, 7.0, 10.0, 13.0]


def test_what_few_tokens_take_that_were_not_seen_is_taken_to_be_what_fewer_take():
    durations = known((1, 2.0), (5, 4.0))
    assert [durations.expected(tokens) for tokens in (0, 1, 2, 3, 4, 4.5)] == [2.0, 2.0, 2.0, 2.0, 2.0, 3.0]
    assert durations.expected(7) == 5.0, "beyond it goes on as between what was seen, not as the step that is a guess"


def test_what_grows_with_its_tokens_is_in_proportion_until_more_is_known():
    durations = known((4, 0.4), fixed=0.0)
    assert [durations.expected(tokens) for tokens in (0, 1, 8)] == pytest.approx([0.0, 0.1, 0.8])
    durations = known((3, 0.4), (4, 0.7), fixed=0.0)
    assert durations.expected(1) == pytest.approx(0.4 / 3), "and never less than nothing"
    assert known((2, 0.3), (4, 0.5), fixed=0.0).expected(3) == pytest.approx(0.4)


@pytest.mark.parametrize("tokens", [0, 6])
@pytest.mark.parametrize("fixed", [0.0, 1.0])
def test_one_kind_says_nothing_wrong_of_itself(tokens, fixed):
    assert known((tokens, 2.0), fixed=fixed).expected(tokens) == pytest.approx(2.0)


def test_neighbours_that_fall_are_of_their_common_mean():
    durations = Durations()
    for tokens, seconds in ((1, 1.0), (2, 9.0), (3, 3.0), (4, 3.0), (6, 8.0)):
        durations.observe(tokens, seconds)
    assert [durations.expected(tokens) for tokens in (1, 2, 3, 4, 5, 6)] == [1.0, 5.0, 5.0, 5.0, 5.0, 8.0]
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
