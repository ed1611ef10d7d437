"""Random histories: whatever is reused, cut, repeated, restarted or evicted, each row is a fresh model's row."""

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from specdec.errors import PrefixMissing
from tests.unit.engine.hash_model import (
    STEP,
    DraftWork,
    HashModel,
    KnowWork,
    MixedWork,
    Running,
    VerifyWork,
    check_books,
    fence,
    fresh_draft,
    fresh_mixed,
    fresh_verdict,
    prefix_of,
)

CONTEXT = 64
tokens = st.lists(st.integers(0, 1), max_size=12)  # two ids: chance agreement is frequent
sessions = st.sampled_from(["a", "b", "c"])


@dataclass(frozen=True)
class Step:
    session: str
    kind: str  # verify, draft, mixed, know, release, restart
    keep: int  # committed tokens that stay, or cached ones of a release
    append: list[int]
    draft_tokens: list[int]
    good: int  # leading draft tokens replaced by the ones the model will choose
    start: str  # acknowledged, zero, any
    any_start: int
    wrong_digest: bool
    cancel_after: int | None  # turns of the loop, in place of waiting for the answer
    repeat: bool  # the very call is made once more


steps = st.builds(
    Step,
    session=sessions,
    kind=st.sampled_from(["verify"] * 3 + ["draft"] * 2 + ["mixed"] * 2 + ["know"] * 2 + ["release", "restart"]),
    keep=st.one_of(st.just(1000), st.integers(0, 40)),
    append=tokens,
    draft_tokens=tokens,
    good=st.integers(0, 5),
    start=st.sampled_from(["acknowledged", "acknowledged", "zero", "any"]),
    any_start=st.integers(0, 60),
    wrong_digest=st.integers(0, 9).map(lambda number: number == 0),
    cancel_after=st.one_of(st.none(), st.none(), st.integers(0, 3)),
    repeat=st.booleans(),
)


@dataclass
class Caller:
    """What a coordinator knows of a session."""

    committed: list[int] = field(default_factory=list)
    acknowledged: int = 0

    def move(self, step):
        self.committed = [*self.committed[: min(step.keep, 40)], *step.append][:48] or [1]
        self.acknowledged = min(self.acknowledged, len(self.committed))

    def start(self, step):
        choices = {"acknowledged": self.acknowledged, "zero": 0, "any": min(step.any_start, len(self.committed))}
        return choices[step.start]


def work_of(step, prefix, committed):
    gamma = 1 + len(step.draft_tokens)
    if step.kind == "draft":
        return DraftWork(prefix, gamma), fresh_draft(committed, gamma)
    if step.kind == "mixed":
        early = step.draft_tokens[: step.good]
        return MixedWork(prefix, early, gamma), fresh_mixed(committed, early, gamma)
    if step.kind == "know":
        return KnowWork(prefix), committed
    draft_tokens = [*fresh_draft(committed, step.good), *step.draft_tokens][: CONTEXT - len(committed)]
    return VerifyWork(prefix, draft_tokens), fresh_verdict(committed, draft_tokens)


async def ask(engine, caller, step, start, wrong_digest=False):
    """Ask once. Returns whether the prefix was held."""
    prefix = prefix_of(caller.committed, step.session, start)
    if wrong_digest:
        prefix = replace(prefix, prefix_digest=prefix.prefix_digest[::-1])
    work, expected = work_of(step, prefix, caller.committed)
    call = asyncio.ensure_future(engine.run(work))
    if step.cancel_after is not None:
        for _ in range(step.cancel_after):
            await asyncio.sleep(0)
        call.cancel()
    try:
        answer = await call
    except PrefixMissing:
        assert start > 0
        return False
    except asyncio.CancelledError:
        return True
    assert not (wrong_digest and start)
    assert answer.result == expected
    assert answer.reused_length >= start
    assert answer.fed_tokens <= CONTEXT
    held = len(caller.committed) + (answer.result[0] if step.kind == "verify" else 0)
    assert answer.cached_length == held
    if step.kind == "verify":
        caller.committed = [*caller.committed, *work.draft_tokens[: answer.result[0]]][:48]
    caller.acknowledged = min(held, len(caller.committed))
    return True


async def take(engine, caller, step):
    if step.kind == "restart":
        return  # only where there is one engine after another
    if step.kind == "release":
        await engine.release(step.session, fence(), keep_length=step.keep)
        return
    caller.move(step)
    start, before = caller.start(step), replace(caller)
    if not await ask(engine, caller, step, start, step.wrong_digest):
        assert await ask(engine, caller, step, 0)
    if step.repeat:
        assert await ask(engine, before, step, start) or await ask(engine, before, step, 0)


async def play(history, **limits):
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(Running(HashModel(CONTEXT), **limits))
        callers = {name: Caller() for name in "abc"}
        for step in history:
            if step.kind == "restart":  # the callers go on from what the former engine has acknowledged
                engine = await stack.enter_async_context(Running(HashModel(CONTEXT), **limits))
            await take(engine, callers[step.session], step)
        await engine.close()
        check_books(engine)


async def play_together(history, **limits):
    async with Running(HashModel(CONTEXT), **limits) as engine:

        async def one(name):
            caller = Caller()
            for step in history:
                if step.session == name:
                    await take(engine, caller, step)

        await asyncio.gather(*(one(name) for name in "abc"))


histories = st.lists(steps, min_size=1, max_size=25)


@settings(max_examples=150, deadline=None)
@given(histories, st.integers(2, 40), st.integers(1, 3), st.integers(CONTEXT // STEP, 3 * CONTEXT // STEP))
def test_one_after_another_with_evictions(history, max_batch_tokens, max_sessions, cache_steps):
    limits = {"max_sessions": max_sessions, "cache_tokens": cache_steps * STEP, "idle_seconds": 0.0}
    asyncio.run(play(history, max_batch_tokens=max_batch_tokens, **limits))


@settings(max_examples=100, deadline=None)
@given(histories, st.integers(2, 40))
def test_side_by_side(history, max_batch_tokens):
    asyncio.run(play_together(history, max_batch_tokens=max_batch_tokens))
