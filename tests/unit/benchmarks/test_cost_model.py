"""The arithmetic of speculation, against the textbook example and sums made by hand."""

import pytest

from benchmarks.cost_model import Costs, alike, expected_tokens

TEXTBOOK = Costs(draft=5, verify=30, plain=30)


def test_the_textbook_example():
    acceptance = alike(0.67, 5)
    assert expected_tokens(acceptance) == pytest.approx((1 - 0.67**6) / (1 - 0.67))
    assert expected_tokens(acceptance) == pytest.approx(2.756, abs=5e-4)
    assert TEXTBOOK.speedup(acceptance) == pytest.approx(1.503, abs=5e-4)


def test_positions_may_differ():
    assert expected_tokens([0.5, 0.8]) == pytest.approx(1 + 0.5 + 0.5 * 0.8)
    assert expected_tokens([]) == 1


def test_a_round_pays_two_round_trips_and_plain_decoding_one():
    far = Costs(draft=5, verify=33, plain=30, round_trip=10)
    assert far.round(0) == 40
    assert far.round(4) == 20 + 33 + 20
    assert far.speedup(alike(1, 4)) == pytest.approx(5 * 40 / 73)


def test_a_hit_saves_the_draft_passes_alone():
    assert TEXTBOOK.round_ahead(5, hit_rate=1) == 30
    assert TEXTBOOK.round_ahead(5, hit_rate=0) == TEXTBOOK.round(5)
