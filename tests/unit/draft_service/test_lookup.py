"""The index of a session's tokens against a search of all of them, whatever was appended and cut before."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draft_service.lookup import LONGEST, NEWEST, Followers, Lookup, Lookups, distribution_of
from specdec.proposal import SparseDistribution

few_tokens = st.lists(st.integers(0, 2), max_size=30)


def searched(shortest, committed, drafted):
    """Return what followed the longest end of all tokens within the committed ones, newest first."""
    tokens = [*committed, *drafted]
    places = [at for at in range(shortest, len(committed)) if committed[at - shortest : at] == tokens[-shortest:]]
    places, matched = places[::-1][:NEWEST], shortest
    for length in range(shortest + 1, LONGEST + 1):
        if longer := [at for at in places if at >= length and committed[at - length : at] == tokens[-length:]]:
            places, matched = longer, length
    return Followers([committed[at] for at in places], matched)


def searched_step(committed, prompt_length, drafted):
    last = [*committed, *drafted][-1]
    places = [at for at in range(max(prompt_length, 1), len(committed)) if committed[at - 1] == last]
    return [committed[at] for at in places[::-1][:NEWEST]]


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 4), st.lists(st.tuples(st.integers(0, 30), few_tokens, few_tokens), max_size=6), st.data())
def test_a_lookup_finds_what_a_search_finds_after_any_history(shortest, history, data):
    lookup, committed = Lookup(shortest), []
    for keep, append, drafted in history:
        before, committed = committed, [*committed[:keep], *append] or [0]
        prompt_length = data.draw(st.integers(1, len(committed)))
        shared = lookup.align(list(committed), prompt_length)
        assert before[:shared] == committed[:shared]
        assert shared == min(len(before), len(committed)) or before[shared] != committed[shared]
        assert lookup.match(drafted) == searched(shortest, committed, drafted)
        assert lookup.step(drafted).token_ids == searched_step(committed, prompt_length, drafted)


def test_what_is_cut_leaves_nothing_behind():
    lookup = Lookup(2)
    lookup.align([1, 2, 3, 1, 2, 4, 1, 2], 1)
    assert lookup.match([]).token_ids == [4, 3]
    lookup.align([9], 1)
    assert lookup.tokens == [9]
    assert not lookup._matches._positions
    assert not lookup._steps._positions


def test_the_longest_match_counts_and_then_the_newest():
    lookup = Lookup(2)
    lookup.align([7, 1, 2, 3, 8, 1, 2, 4, 7, 1, 2], 11)
    assert lookup.match([]).token_ids == [3]
    assert lookup.match([9]).token_ids == []
    assert lookup.match([9, 1, 2]).token_ids == [4, 3]


def test_steps_are_learnt_from_the_answer_alone():
    lookup = Lookup(2)
    tokens = [1, 5, 1, 6, 1, 6, 1]
    for prompt_length, expected in [(1, [6, 6, 5]), (3, [6, 6]), (4, [6]), (7, [])]:
        lookup.align(tokens, prompt_length)
        assert lookup.step([]).token_ids == expected
    assert lookup.step([5]).token_ids == []


def test_no_more_than_the_newest_are_looked_at():
    lookup = Lookup(2)
    lookup.align([1, 2, 3] * 200 + [1, 2, 4] * NEWEST + [1, 2], 1)
    assert lookup.match([9, 1, 2]).token_ids == [4] * NEWEST
    assert lookup.step([]).token_ids == [4] * NEWEST


@pytest.mark.parametrize(
    ("followers", "support_size", "greedy", "expected"),
    [
        ([5], 4, False, ((5,), (1.0,))),
        ([5, 6, 6, 7], 4, False, ((6, 5, 7), (0.5, 0.25, 0.25))),
        ([5, 6, 6, 7], 2, False, ((6, 5), (0.6666666865348816, 0.3333333432674408))),
        ([5, 6, 6, 7], 4, True, ((6,), (1.0,))),
        ([5, 6, 6, 5], 4, True, ((5,), (1.0,))),
    ],
)
def test_a_distribution_is_the_share_of_each_follower(followers, support_size, greedy, expected):
    assert distribution_of(followers, support_size, greedy=greedy) == SparseDistribution(*expected)


def held(lookups):
    return {name: len(lookup.tokens) for name, lookup in lookups._lookups.items()}


def test_lookups_are_bounded_by_sessions_and_by_tokens_least_recently_used_first():
    lookups = Lookups(2, max_sessions=3, max_tokens=20)
    for name, length in [("a", 4), ("b", 4), ("c", 4), ("a", 5), ("d", 4)]:
        assert lookups.aligned(name, [1] * length, 1).tokens == [1] * length
    assert held(lookups) == {"c": 4, "a": 5, "d": 4}
    lookups.aligned("c", [1] * 12, 1)
    assert held(lookups) == {"d": 4, "c": 12}
    lookups.aligned("d", [1] * 25, 1)  # the engine has granted it
    assert held(lookups) == {"d": 25}
    lookups.drop("d")
    lookups.drop("unknown")
    assert len(lookups) == 0


def test_a_lookup_that_comes_back_keeps_what_it_has():
    lookups = Lookups(2, max_sessions=3, max_tokens=20)
    first = lookups.aligned("a", [1, 2, 3], 1)
    assert lookups.aligned("a", [1, 2, 3, 4], 1) is first
