"""Alignment and the digest of one session's cache, step by step."""

import pytest

from specdec.errors import PrefixMissing
from specdec.model.session_cache import SessionCache
from tests.unit.engine.hash_model import HashCache, prefix_of


def session_of(tokens, committed):
    session = SessionCache("s", HashCache())
    session.align(0, tokens)
    feed(session)
    assert session.settle(len(tokens), committed) == committed
    return session


def feed(session, count=1000):
    tokens = session.take(count)
    cache = session.cache
    cache.held[cache.length : cache.length + len(tokens)] = tokens
    cache.length += len(tokens)


def test_longest_common_prefix_stays():
    session = session_of([1, 2, 3, 4], 3)
    assert session.align(3, [4, 5]) == 4
    assert (session.tokens, session.pending) == ([1, 2, 3, 4, 5], 1)
    assert session.align(0, [1, 2, 9]) == 2
    assert (session.tokens, session.cache.length) == ([1, 2, 9], 2)


def test_rows_wanted_are_fed_again():
    session = session_of([1, 2, 3, 4], 4)
    session.align(0, [1, 2, 3])
    session.leave(2)
    assert (session.cache.length, session.take(9)) == (1, [2, 3])
    session.leave(0)
    assert session.cache.length == 1
    feed(session)
    session.leave(0)
    assert session.take(9) == [3]


def test_commit_may_end_before_the_last_one():
    session = session_of([1, 2, 3, 4, 5], 5)
    session.align(0, [1, 2, 3, 4, 5])
    session.leave(3)
    feed(session)
    assert session.settle(3, 3) == 3
    session.check(prefix_of([1, 2, 3], start=3))
    assert session.tokens == [1, 2, 3]


def test_abandoned_call_keeps_what_was_fed_and_what_was_known_and_no_more():
    session = session_of([1, 2, 3, 4, 5], 4)
    session.align(0, [1, 2, 3, 4, 5, 6])
    session.leave(4)
    feed(session, 1)
    session.abandon()
    assert (session.tokens, session.cache.length) == ([1, 2, 3, 4], 3)
    session.check(prefix_of([1, 2, 3, 4], start=4))
    with pytest.raises(PrefixMissing):
        session.check(prefix_of([1, 2, 3, 4, 5], start=5))
    session.align(0, [1, 2, 9, 9])
    feed(session, 1)
    session.abandon()
    assert session.tokens == [1, 2, 9]


@pytest.mark.parametrize("start", range(6))
def test_any_start_that_is_held_is_known_by_its_digest(start):
    session = session_of([1, 2, 3, 4, 5], 3)
    session.check(prefix_of([1, 2, 3, 4, 5], start=start))
    with pytest.raises(PrefixMissing):
        session.check(prefix_of([1, 2, 3, 4, 5, 6, 7], start=6 + start))
    if start:
        with pytest.raises(PrefixMissing):
            session.check(prefix_of([9, 2, 3, 4, 5], start=start))


def test_commit_may_exceed_what_is_fed_and_never_what_is_held():
    session = session_of([1, 2, 3], 1)
    assert session.settle(1, 2) == 2
    assert (session.tokens, session.pending) == ([1, 2], 1)
    assert session.settle(9, 9) == 2
    session.check(prefix_of([1, 2, 3], start=2))
    session.align(2, [3])
    session.abandon()
    assert (session.tokens, session.cache.length) == ([1, 2], 1)


def test_what_is_given_up_is_neither_fed_nor_known_past_its_end():
    session = session_of([1, 2, 3, 4], 4)
    session.settle(1, 4)
    session.give_up(3)
    assert (session.tokens, session.cache.length) == ([1, 2, 3], 1)
