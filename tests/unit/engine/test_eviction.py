"""Who makes room for whom, counted in capacities; all on the budget's edge."""

import asyncio

import pytest

from specdec.errors import CacheFull, PrefixMissing
from tests.engines import state_of
from tests.unit.engine.hash_model import (
    DraftWork,
    Gate,
    HashModel,
    KnowWork,
    MixedWork,
    Running,
    VerifyWork,
    fence,
    fresh_draft,
    fresh_verdict,
    prefix_of,
)
from tests.unit.engine.test_together import arrived, submitted


async def ask(engine, name, length=8):
    return await engine.run(VerifyWork(prefix_of([1] * length, name)))


async def is_cached(engine, name, length=8):
    try:
        await engine.run(VerifyWork(prefix_of([1] * (length + 1), name, start=length)))
    except PrefixMissing:
        return False
    return True


async def test_session_between_rounds_is_not_evicted_for_a_newcomer():
    async with Running(HashModel(), max_sessions=2) as engine:
        await ask(engine, "a")
        await ask(engine, "b")
        with pytest.raises(CacheFull) as refused:
            await ask(engine, "c")
        assert refused.value.retry_seconds > 0
        assert await is_cached(engine, "a")
        assert await is_cached(engine, "b")


async def test_released_sessions_go_least_recently_used_first_and_only_as_many_as_needed():
    async with Running(HashModel(), cache_tokens=24, max_sessions=10) as engine:
        for name in ("a", "b", "c"):
            await ask(engine, name)
        for name in ("c", "b"):
            await engine.release(name, fence(), keep_length=1000)
        await ask(engine, "d")  # "b" was used before "c"
        assert await is_cached(engine, "a", 7)
        assert await is_cached(engine, "c", 7)
        assert not await is_cached(engine, "b", 7)
    assert engine.state.evictions == 1


async def test_nothing_is_evicted_when_it_would_not_be_enough():
    async with Running(HashModel(), cache_tokens=24) as engine:
        for name in ("a", "b", "c"):
            await ask(engine, name)
        await engine.release("a", fence(), keep_length=1000)
        with pytest.raises(CacheFull):
            await ask(engine, "d", length=9)
        assert await is_cached(engine, "a", 7)


async def test_session_that_comes_back_is_not_released_any_more():
    async with Running(HashModel(), max_sessions=1) as engine:
        await ask(engine, "a")
        await engine.release("a", fence(), keep_length=1000)
        assert await is_cached(engine, "a")
        with pytest.raises(CacheFull):
            await ask(engine, "b")


async def test_idle_session_makes_room():
    async with Running(HashModel(), max_sessions=1, idle_seconds=0) as engine:
        await ask(engine, "a")
        await ask(engine, "b")
        assert not await is_cached(engine, "a")


async def test_session_that_grows_does_not_count_its_own_room_as_taken():
    async with Running(HashModel(), cache_tokens=24, idle_seconds=0) as engine:
        await ask(engine, "a", 8)
        await ask(engine, "b", 16)
        assert (await ask(engine, "a", 16)).reused_length == 8
        assert not await is_cached(engine, "b", 16)


async def test_released_now_is_free_now():
    async with Running(HashModel(), max_sessions=1) as engine:
        await ask(engine, "a")
        await engine.release("a", fence(), keep_length=0)
        await ask(engine, "b")


@pytest.mark.parametrize("keep", [0, 1000])
async def test_what_is_released_makes_room_although_the_caller_did_not_wait_for_it(keep):
    """A pass may take longer than a coordinator waits: the session would stay until it counts as idle."""
    model = HashModel()
    async with Running(model, max_sessions=2) as engine:
        await ask(engine, "finished")
        gate = Gate(model)
        tasks = await submitted(ask(engine, "other"))
        await arrived(gate)
        tasks += await submitted(engine.release("finished", fence(), keep_length=keep))
        tasks[1].cancel()
        gate.open()
        await tasks[0]
        await ask(engine, "newcomer")
        with pytest.raises(asyncio.CancelledError):
            await tasks[1]


@pytest.mark.parametrize("keep", [1, 3, 8, 100])
async def test_what_is_released_keeps_no_more_than_it_says(keep):
    async with Running(HashModel()) as engine:
        await ask(engine, "a")
        await engine.release("a", fence(), keep_length=keep)
        assert (await ask(engine, "a")).reused_length == min(keep, 8)


async def test_running_session_is_never_evicted_and_its_whole_prompt_has_room_from_the_start():
    model = HashModel()
    gate = Gate(model)
    async with Running(model, cache_tokens=104, max_batch_tokens=10, idle_seconds=0) as engine:
        tasks = await submitted(engine.run(VerifyWork(prefix_of([3] * 90, "a"))))
        await arrived(gate)
        tasks += await submitted(ask(engine, "b", length=9))
        gate.open()
        with pytest.raises(CacheFull):
            await tasks[1]
        assert (await tasks[0]).result == fresh_verdict([3] * 90)
        await ask(engine, "b", length=9)


async def know(engine, name, length=8):
    return await engine.run(KnowWork(prefix_of([1] * length, name)))


async def test_session_that_only_knows_its_tokens_takes_room_stays_and_makes_room_like_any_other():
    async with Running(HashModel(), cache_tokens=24, max_sessions=10) as engine:
        for name in "abc":
            assert (await know(engine, name)).cached_length == 8
        with pytest.raises(CacheFull):
            await know(engine, "d")
        with pytest.raises(CacheFull):
            await know(engine, "a", 9)
        await engine.release("a", fence(), keep_length=1000)
        assert (await know(engine, "a")).reused_length == 8  # and is not released any more
        with pytest.raises(CacheFull):
            await ask(engine, "d")
        await engine.release("b", fence(), keep_length=4)
        assert (await know(engine, "b")).reused_length == 4
        await engine.release("b", fence(), keep_length=4)
        await ask(engine, "d")
        assert await is_cached(engine, "a", 7)
        assert not await is_cached(engine, "b", 4)
        await engine.release("c", fence(), keep_length=0)
        await know(engine, "e")
    assert engine.state.evictions == 1


async def test_sessions_that_only_know_are_counted():
    async with Running(HashModel(), max_sessions=2) as engine:
        await know(engine, "a")
        await know(engine, "b")
        with pytest.raises(CacheFull):
            await know(engine, "c")
        assert (await state_of(engine)).sessions == 2


async def test_session_that_would_outgrow_the_cache_is_refused_alone_before_it_draws():
    async with Running(HashModel(), cache_tokens=24) as engine:
        await ask(engine, "a", 16)
        with pytest.raises(CacheFull):
            await engine.run(DraftWork(prefix_of([1] * 7, "b"), 4))
        assert (await ask(engine, "b", 7)).reused_length == 0
        await engine.release("a", fence(), keep_length=1000)
        answer = await engine.run(DraftWork(prefix_of([1] * 7, "b"), 4))
        assert answer.result == fresh_draft([1] * 7, 4)


async def test_what_can_never_fit_is_refused_for_good():
    async with Running(HashModel(), cache_tokens=24) as engine:
        await ask(engine, "a", 24)
        with pytest.raises(CacheFull) as refused:
            await ask(engine, "b", 25)
        assert refused.value.retry_seconds == 0


async def test_cancelled_newcomer_that_fed_nothing_leaves_no_session():
    model = HashModel()
    gate = Gate(model)
    async with Running(model, max_batch_tokens=2, max_sessions=4) as engine:
        tasks = await submitted(*(ask(engine, name, 50) for name in "abc"))
        await arrived(gate)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        gate.open()
        await ask(engine, "d")
    assert engine.state.sessions == 1 + len(model.passes[0])


@pytest.mark.parametrize(
    "make",
    [lambda prefix: KnowWork(prefix, reach=4), lambda prefix: MixedWork(prefix, [1, 2], 4)],
    ids=["nothing is fed", "as much as may be is fed"],
)
async def test_room_is_refused_alike_whatever_a_work_would_feed(make):
    """A work whose tokens decide how much it feeds must not be refused by them."""
    async with Running(HashModel(), cache_tokens=16, max_sessions=10) as engine:
        await ask(engine, "a")
        with pytest.raises(CacheFull):
            await engine.run(make(prefix_of([1] * 8)))
        await engine.release("a", fence(), keep_length=0)
        await engine.run(make(prefix_of([1] * 8)))


async def test_room_for_what_was_not_fed_is_given_back():
    async with Running(HashModel(), cache_tokens=16, max_sessions=10) as engine:
        await engine.run(KnowWork(prefix_of([1] * 8), reach=4))
        await ask(engine, "a")
