"""Which outcomes of a round are likely: pure arithmetic over what is known before it."""

import pytest

from draft_service.ahead import Prospective, full_accepts, likeliest, rejections

RANKINGS = [[(4, 0.5), (7, 0.3), (1, 0.1)], [(2, 0.6), (9, 0.4), (3, 0.0)]]


def test_a_rejected_token_never_comes_next_and_the_others_share_its_place():
    ways = rejections([4, 9], RANKINGS, [0.75, 0.5])
    assert [(way.accept_index, way.next_token) for way in ways] == [(0, 7), (0, 1), (1, 2)]
    assert [way.probability for way in ways] == pytest.approx([0.25 * 0.75, 0.25 * 0.25, 0.75 * 0.5])


def test_a_token_that_was_not_ranked_leaves_all_ranked_ones():
    ways = rejections([8], RANKINGS[:1], [0.5])
    assert [way.probability for way in ways] == pytest.approx([0.5 * share / 0.9 for share in (0.5, 0.3, 0.1)])


def test_a_draft_that_saw_nothing_else_expects_nothing_else():
    assert rejections([4], [[(4, 1.0), (5, 0.0)]], [0.5]) == []


def test_together_the_outcomes_are_all_there_is():
    standing = 0.75 * 0.5
    ways = [*rejections([4, 9], RANKINGS, [0.75, 0.5]), *full_accepts(2, [(5, 0.75), (6, 0.25), (7, 0.0)], standing)]
    assert sum(way.probability for way in ways) == pytest.approx(1.0)
    assert [(way.accept_index, way.next_token) for way in ways[-2:]] == [(2, 5), (2, 6)]


def test_the_likeliest_are_kept():
    ways = [Prospective(0, token, probability) for token, probability in ((1, 0.1), (2, 0.6), (3, 0.3))]
    assert [way.next_token for way in likeliest(ways, 2)] == [2, 3]
