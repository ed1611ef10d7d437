"""The number of draft tokens: the policy and its limits."""

import pytest

from coordinator.gamma import DEFAULT_GAMMA, policy_of, within_answer, within_draft
from coordinator.session import Usage


def test_a_fixed_gamma_stays_and_the_default_speculates():
    assert policy_of(7)(Usage(rounds=3)) == 7
    assert policy_of(0)(Usage()) == 0
    assert policy_of(None)(Usage()) == DEFAULT_GAMMA > 0


@pytest.mark.parametrize(("remaining", "gamma"), [(1, 0), (2, 1), (5, 4), (6, 5), (100, 8)])
def test_a_round_never_commits_more_than_the_answer_may_have(remaining, gamma):
    assert within_answer(8, remaining, max_gamma=16) == gamma
    assert within_answer(8, remaining, max_gamma=3) == min(gamma, 3)


@pytest.mark.parametrize(("base_length", "gamma"), [(10, 8), (94, 7), (100, 1), (101, 0), (150, 0)])
def test_the_draft_is_not_asked_past_its_context(base_length, gamma):
    assert within_draft(8, base_length, context_length=100, max_gamma=16) == gamma
