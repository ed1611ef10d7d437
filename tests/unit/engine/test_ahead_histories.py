"""Random rounds with works ahead: whatever was foreseen, dropped, cut or evicted, each answer is a fresh model's."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from specdec.errors import CacheFull, PrefixMissing
from tests.unit.engine.branching_model import BranchingModel, ForesightedWork, rest
from tests.unit.engine.hash_model import STEP, Running, fence, fresh_draft, prefix_of

TOKENS = (0, 1, 2)
FORESEEN = [(index, token) for index in range(4) for token in TOKENS[:2]]


@dataclass(frozen=True)
class Round:
    session: str
    gamma: int
    accept_index: int
    token: int  # the last of TOKENS is never foreseen
    known: bool  # from where on the call says its tokens
    idle: bool  # the draft has all the time it wants
    end: str  # nothing, release, keep (a part), cancel (the next call), plain (a call that expects nothing)


rounds = st.builds(
    Round,
    session=st.sampled_from(["a", "b"]),
    gamma=st.integers(1, 4),
    accept_index=st.integers(0, 4),
    token=st.sampled_from(TOKENS),
    known=st.booleans(),
    idle=st.sampled_from([True, True, False]),
    end=st.sampled_from(["nothing"] * 6 + ["release", "keep", "cancel", "plain"]),
)


async def ask(engine, work, committed):
    """Ask once or, where the prefix is not held, again from the start."""
    for start in (work.prefix.start, 0):
        work.prefix = prefix_of(committed, work.prefix.session_id, start)
        with suppress(PrefixMissing):
            answer = await engine.run(work)
            assert answer.result == fresh_draft(committed, work.gamma)
            return answer
    raise AssertionError


async def play(history, **limits):
    committed, held, found = {"a": [1], "b": [2]}, {"a": 0, "b": 0}, 0
    async with Running(BranchingModel(), **limits) as engine:
        for each in history:
            tokens = committed[each.session][-40:] if len(committed[each.session]) > 60 else committed[each.session]
            prefix = prefix_of(tokens, each.session, min(held[each.session], len(tokens)) if each.known else 0)
            outcomes = [way for way in FORESEEN if way[0] < each.gamma and each.end != "plain"]
            work = ForesightedWork(prefix, each.gamma, outcomes)
            if each.end == "cancel":
                call = asyncio.ensure_future(engine.run(work))
                await asyncio.sleep(0)
                call.cancel()
                continue
            try:
                answer = await ask(engine, work, tokens)
            except CacheFull:
                continue
            found += bool(work.found)
            held[each.session] = answer.cached_length
            if each.idle:
                await rest(engine)
            if each.end in ("release", "keep"):
                await engine.release(each.session, fence(), len(tokens) // 2 if each.end == "keep" else 0)
            committed[each.session] = [*tokens, *answer.result[: each.accept_index], each.token]
    return found


@settings(max_examples=100, deadline=None)
@given(st.lists(rounds, min_size=2, max_size=12), st.integers(1, 12), st.integers(16, 40), st.integers(1, 2))
def test_answers_are_those_of_a_fresh_model(history, ahead_tokens, cache_steps, max_sessions):
    limits = {"cache_tokens": cache_steps * STEP, "max_sessions": max_sessions, "idle_seconds": 0.0}
    asyncio.run(play(history, ahead_tokens=ahead_tokens, **limits))


def test_much_of_it_is_found():
    history = [Round("a", 3, index % 3, index % 2, True, True, "nothing") for index in range(10)]
    assert asyncio.run(play(history, ahead_tokens=8)) == 9
