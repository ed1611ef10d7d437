"""Calls that end early: cancelled, superseded, refused, failed, closed. Nobody else notices."""

import asyncio
import threading

import pytest

from specdec.errors import (
    InvalidProposal,
    NotReady,
    NumericalFailure,
    PrefixMissing,
    QueueFull,
    SpecdecError,
    StaleFence,
)
from specdec.model import engine as engine_module
from specdec.model.engine import Engine, Feed
from tests.engines import state_of
from tests.unit.engine.hash_model import (
    DraftWork,
    Gate,
    HashModel,
    OddWork,
    Running,
    VerifyWork,
    advance,
    fence,
    fresh_draft,
    fresh_verdict,
    limits,
    prefix_of,
    raises,
)
from tests.unit.engine.test_together import arrived, submitted


async def test_cancelled_prompt_stops_before_the_next_pass_and_what_it_fed_is_of_use():
    model = HashModel()
    gate = Gate(model)
    prompt = [index % 16 for index in range(100)]
    async with Running(model, max_batch_tokens=30) as engine:
        tasks = await submitted(engine.run(VerifyWork(prefix_of(prompt))))
        await arrived(gate)
        tasks[0].cancel()
        with pytest.raises(asyncio.CancelledError):
            await tasks[0]
        gate.open()
        answer = await engine.run(VerifyWork(prefix_of(prompt)))
    assert answer.result == fresh_verdict(prompt)
    assert (answer.reused_length, answer.fed_tokens) == (30, 70)
    assert len(model.passes) == 4


async def test_cancelled_while_waiting_is_never_begun():
    model = HashModel()
    gate = Gate(model)
    begun = []
    async with Running(model) as engine:
        tasks = await submitted(engine.run(VerifyWork(prefix_of([1]))))
        await arrived(gate)
        tasks += await submitted(engine.run(OddWork(prefix_of([2], "other"), begin=begun.append)))
        tasks[1].cancel()
        gate.open()
        await tasks[0]
        await engine.run(VerifyWork(prefix_of([1, 2])))
    assert begun == []


async def test_higher_fence_ends_running_and_waiting_calls_and_late_results_are_discarded():
    model = HashModel()
    gate = Gate(model)
    async with Running(model) as engine:
        old = await submitted(
            engine.run(VerifyWork(prefix_of([1, 2], claim=fence(1)))),
            engine.run(VerifyWork(prefix_of([1, 2], claim=fence(1)))),
            engine.release("s", fence(1), keep_length=0),
        )
        other = await submitted(engine.run(VerifyWork(prefix_of([5], "other", claim=fence(1)))))
        await arrived(gate)
        new = await submitted(engine.run(DraftWork(prefix_of([1, 2], claim=fence(2, "b")), 3)))
        gate.open()
        for call in old:
            with pytest.raises(StaleFence) as ended:
                await call
            assert ended.value.metadata == {"counter": "2", "owner": "b" * 32}
        assert (await new[0]).result == fresh_draft([1, 2], 3)
        assert (await other[0]).result == fresh_verdict([5])
        for late in (engine.run(VerifyWork(prefix_of([1, 2]))), engine.release("s", fence(2, "a"), keep_length=0)):
            with pytest.raises(StaleFence):
                await late


async def test_release_that_was_left_is_in_nobodys_way():
    model = HashModel()
    async with Running(model) as engine:
        gate = Gate(model)
        tasks = await submitted(engine.run(VerifyWork(prefix_of([5], "other"))))
        await arrived(gate)
        left = await submitted(engine.release("s", fence(1), keep_length=0))
        left[0].cancel()
        engine._admit("s", fence(2))  # at the same step
        gate.open()
        await tasks[0]
        left += await submitted(engine.release("s", fence(2), keep_length=0))
        left[1].cancel()
        await engine.close()
        ends = await asyncio.gather(*left, return_exceptions=True)
    assert [type(end) for end in ends] == [asyncio.CancelledError] * 2


async def test_result_that_was_on_its_way_when_the_higher_fence_came_is_discarded():
    model = HashModel()
    async with Running(model) as engine:
        loop = asyncio.get_running_loop()
        complaints = []
        loop.set_exception_handler(lambda loop, context: complaints.append(context))

        def advance_and_be_taken_over(works):
            loop.call_soon_threadsafe(engine._admit, "s", fence(2))  # comes before the results do
            return advance(works)

        engine._batching._advance = advance_and_be_taken_over
        with pytest.raises(StaleFence):
            await engine.run(VerifyWork(prefix_of([1, 2])))
        await engine.run(VerifyWork(prefix_of([1], claim=fence(2))))
        assert complaints == []


async def test_fence_outlives_the_cache():
    async with Running(HashModel()) as engine:
        await engine.run(VerifyWork(prefix_of([1, 2], claim=fence(3))))
        await engine.release("s", fence(4), keep_length=0)
        assert (await state_of(engine)).sessions == 0
        with pytest.raises(StaleFence):
            await engine.run(VerifyWork(prefix_of([1, 2], claim=fence(3))))
        with pytest.raises(PrefixMissing):
            await engine.run(VerifyWork(prefix_of([1, 2], start=1, claim=fence(4))))
        await engine.release("never heard of", fence(1), keep_length=0)


@pytest.mark.parametrize("error", [InvalidProposal("no", field="proposal"), ZeroDivisionError("broken")])
async def test_work_that_cannot_begin_or_go_on_fails_alone(error):
    model = HashModel()
    gate = Gate(model)
    async with Running(model) as engine:
        first = await submitted(engine.run(VerifyWork(prefix_of([1], "first"))))
        await arrived(gate)
        bad = await submitted(engine.run(OddWork(prefix_of([2], "bad"), begin=raises(error))))
        good = await submitted(engine.run(VerifyWork(prefix_of([3], "good"))))
        gate.open()
        with pytest.raises(type(error)):
            await bad[0]
        assert (await good[0]).result == fresh_verdict([3])
        await first[0]
        answer = await engine.run(VerifyWork(prefix_of([2], "bad")))
        assert answer.reused_length == 0


async def test_error_as_an_outcome_fails_that_call_only_and_bad_numbers_free_its_cache():
    model = HashModel()
    async with Running(model) as engine:
        for error, kept in [(InvalidProposal("no"), 3), (NumericalFailure("not finite"), 0)]:
            bad = engine.run(OddWork(prefix_of([1, 2, 3], "bad"), step=lambda rows, error=error: error))
            good = engine.run(VerifyWork(prefix_of([7, 8], "good")))
            results = await asyncio.gather(bad, good, return_exceptions=True)
            assert results[0] is error
            assert results[1].result == fresh_verdict([7, 8])
            answer = await engine.run(VerifyWork(prefix_of([1, 2, 3], "bad")))
            assert answer.reused_length == kept
            await engine.release("bad", fence(), keep_length=0)


async def test_outcome_that_cannot_be_fed_fails_that_call_only():
    async with Running(HashModel()) as engine:
        with pytest.raises(ValueError, match="9 rows of 2 tokens"):
            await engine.run(OddWork(prefix_of([1]), step=lambda rows: Feed([2], 9)))
        assert (await engine.run(VerifyWork(prefix_of([1])))).result == fresh_verdict([1])


@pytest.mark.parametrize("where", ["before_pass", "after_pass"])
async def test_failed_pass_fails_its_calls_frees_their_caches_and_the_engine_goes_on(where):
    model = HashModel()
    async with Running(model) as engine:
        await engine.run(VerifyWork(prefix_of([9, 9], "bystander")))
        await engine.run(VerifyWork(prefix_of([1, 2, 3])))
        healthy = getattr(model, where)
        setattr(model, where, lambda: raises(RuntimeError("no memory"))(None))
        with pytest.raises(SpecdecError, match="RuntimeError") as failed:
            await engine.run(VerifyWork(prefix_of([1, 2, 3, 4], start=3)))
        assert failed.value.reason == "INTERNAL"
        setattr(model, where, healthy)
        with pytest.raises(PrefixMissing):
            await engine.run(VerifyWork(prefix_of([1, 2, 3, 4], start=3)))
        assert (await engine.run(VerifyWork(prefix_of([1, 2, 3, 4])))).result == fresh_verdict([1, 2, 3, 4])
        assert (await engine.run(VerifyWork(prefix_of([9, 9, 1], "bystander", start=2)))).reused_length == 2


@pytest.mark.parametrize("broken", [raises(RuntimeError("no")), lambda works: []])
async def test_advance_that_breaks_fails_its_pass(broken):
    calls = []

    def once_broken(works):
        calls.append(len(works))
        return broken(works) if len(calls) == 1 else advance(works)

    async with Running(HashModel(), once_broken) as engine:
        with pytest.raises(SpecdecError):
            await engine.run(VerifyWork(prefix_of([1, 2])))
        assert (await engine.run(VerifyWork(prefix_of([1, 2])))).result == fresh_verdict([1, 2])


async def test_full_queue_refuses_but_release_is_taken():
    model = HashModel()
    gate = Gate(model)
    async with Running(model, max_queue=2) as engine:
        tasks = await submitted(engine.run(VerifyWork(prefix_of([1], "running"))))
        await arrived(gate)
        tasks += await submitted(*(engine.run(VerifyWork(prefix_of([1], f"s{index}"))) for index in range(2)))
        with pytest.raises(QueueFull) as refused:
            await engine.run(VerifyWork(prefix_of([1], "s3")))
        assert refused.value.retry_seconds > 0
        tasks += await submitted(engine.release("running", fence(), keep_length=1000))
        gate.open()
        await asyncio.gather(*tasks)
        await engine.run(VerifyWork(prefix_of([1], "s3")))


async def test_queue_full_of_newcomers_takes_the_next_call_of_a_session_that_is_here():
    model = HashModel()
    async with Running(model, max_queue=2, max_sessions=1) as engine:
        await engine.run(VerifyWork(prefix_of([1, 2], "here")))
        gate = Gate(model)
        tasks = await submitted(engine.run(VerifyWork(prefix_of([1, 2, 3], "here", start=2))))
        await arrived(gate)
        newcomers = await submitted(*(engine.run(VerifyWork(prefix_of([1], f"s{index}"))) for index in range(2)))
        releases = await submitted(*(engine.release(f"t{index}", fence(), 0) for index in range(9)))
        tasks += await submitted(engine.run(VerifyWork(prefix_of([1, 2, 3, 4], "here", start=2))))
        with pytest.raises(QueueFull):  # whoever says of all its calls that they are here has no more room than that
            await engine.run(VerifyWork(prefix_of([1, 2, 3, 4], "here", start=2)))
        gate.open()
        verdicts = [each.result for each in await asyncio.gather(*tasks)]
        assert verdicts == [fresh_verdict([1, 2, 3]), fresh_verdict([1, 2, 3, 4])]
        await asyncio.gather(*releases)
        await asyncio.gather(*newcomers, return_exceptions=True)


async def test_close_fails_what_is_open_and_ends_the_thread():
    model = HashModel()
    gate = Gate(model)
    engine = Engine(model, advance, limits())
    with pytest.raises(NotReady):
        await engine.run(VerifyWork(prefix_of([1])))
    engine.start()
    tasks = await submitted(engine.run(VerifyWork(prefix_of([1] * 200))))
    await arrived(gate)
    tasks += await submitted(
        engine.run(VerifyWork(prefix_of([2], "waits"))), engine.release("s", fence(), keep_length=0)
    )
    closing = (await submitted(engine.close()))[0]
    gate.open(1)  # too late for a second pass
    await closing
    for task in tasks:
        with pytest.raises(NotReady):
            await task
    assert not engine._thread.is_alive()
    assert len(model.passes) == 1
    with pytest.raises(NotReady):
        await engine.run(VerifyWork(prefix_of([1])))
    await engine.close()


async def test_close_before_start_returns():
    await Engine(HashModel(), advance, limits()).close()


async def test_engine_that_breaks_answers_what_is_open_and_refuses_the_rest(monkeypatch):
    engine = Engine(HashModel(), advance, limits())
    monkeypatch.setattr(engine._batching, "turn", lambda: raises(KeyError("a fault of its own"))(None))
    engine.start()
    with pytest.raises(SpecdecError, match="the engine has failed"):
        await engine.run(VerifyWork(prefix_of([1])))
    with pytest.raises(NotReady):
        await engine.run(VerifyWork(prefix_of([1])))
    await engine.broken.wait()
    await engine.close()


async def test_a_call_that_comes_while_the_engine_breaks_is_answered(monkeypatch):
    monkeypatch.setattr(engine_module, "HEARTBEAT_SECONDS", 0.01)
    engine = Engine(HashModel(), advance, limits())
    breaking, submit = threading.Event(), engine._submit
    monkeypatch.setattr(engine._batching, "turn", lambda: breaking.wait(30) and raises(KeyError("its own"))(None))

    def submit_when_broken(job):
        breaking.set()
        engine._thread.join()
        submit(job)

    monkeypatch.setattr(engine, "_submit", submit_when_broken)
    engine.start()
    with pytest.raises(SpecdecError, match="the engine has failed"):
        async with asyncio.timeout(30):
            await engine.run(VerifyWork(prefix_of([1])))
    await engine.close()


@pytest.mark.parametrize("name", ["max_batch_tokens", "max_sessions", "cache_tokens", "max_queue"])
def test_limits_that_allow_nothing_are_refused(name):
    with pytest.raises(ValueError, match=name):
        limits(**{name: 0})
