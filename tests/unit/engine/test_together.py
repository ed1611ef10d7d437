"""Many sessions at once: ragged passes, prompts beside decoding, order within a session."""

import asyncio

from specdec.model.engine import Done, Feed
from specdec.model.gathering import Gathering
from tests.engines import at_rest, state_of
from tests.unit.engine.hash_model import (
    DraftWork,
    Gate,
    HashModel,
    OddWork,
    Running,
    VerifyWork,
    fresh_draft,
    fresh_verdict,
    prefix_of,
)


async def arrived(gate):
    assert await asyncio.to_thread(gate.arrived.acquire, timeout=30)


async def submitted(*works_of_engine):
    """Start calls as tasks and let each of them reach the engine."""
    tasks = [asyncio.ensure_future(work) for work in works_of_engine]
    await asyncio.sleep(0)
    return tasks


async def test_everything_that_waits_shares_the_next_pass_whatever_its_length():
    model = HashModel()
    gate = Gate(model)
    async with Running(model) as engine:
        first = await submitted(engine.run(VerifyWork(prefix_of([9], "first"))))
        await arrived(gate)
        prompts = {f"s{index}": [index] * (2 * index + 1) for index in range(5)}
        extras = {name: [1] * (index % 3) for index, name in enumerate(prompts)}
        tasks = await submitted(
            *(engine.run(VerifyWork(prefix_of(prompts[name], name), extras[name])) for name in prompts)
        )
        assert engine.queue_length == 5
        gate.open()
        answers = await asyncio.gather(*first, *tasks)
    for name, answer in zip(prompts, answers[1:], strict=True):
        assert answer.result == fresh_verdict(prompts[name], extras[name])
        assert answer.batch_size == 5
    assert [count for count, _ in model.passes[1]] == [1, 4, 7, 7, 10]
    assert len(model.passes) == 2


async def test_long_prompt_is_fed_beside_decoding_and_neither_waits_long():
    model = HashModel()
    gate = Gate(model)
    prompt = [index % 16 for index in range(400)]
    async with Running(model, max_batch_tokens=40) as engine:
        long = (await submitted(engine.run(VerifyWork(prefix_of(prompt, "long")))))[0]
        await arrived(gate)
        drafts = [DraftWork(prefix_of([index, 3], f"d{index}"), 5) for index in range(3)]
        tasks = await submitted(*(engine.run(work) for work in drafts))
        gate.open()
        answers = await asyncio.gather(*tasks)
        assert [answer.passes for answer in answers] == [5, 5, 5]
        assert (await long).result == fresh_verdict(prompt)
    sizes = [sum(count for count, _ in batch) for batch in model.passes]
    assert max(sizes) <= 40
    assert len(sizes) == 11  # 400 + 3 * 6 tokens, each pass full
    assert [len(batch) for batch in model.passes] == [1] + [4] * 5 + [1] * 5
    for work, answer in zip(drafts, answers, strict=True):
        assert answer.result == fresh_draft(work.prefix.tokens, 5)


async def test_a_pass_that_waits_takes_who_comes_and_begins_when_nobody_is_waited_for(monkeypatch):
    wanted = [2, 1]  # calls in the next passes
    monkeypatch.setattr(Gathering, "wait_seconds", lambda self, since, ready: 30.0 * (ready < wanted[0]))
    model = HashModel()
    async with Running(model) as engine:
        first = await submitted(engine.run(VerifyWork(prefix_of([1, 2], "first"))))
        await state_of(engine)
        assert engine.state.running == 1
        assert not model.passes
        second = await submitted(engine.run(VerifyWork(prefix_of([3], "second"))))
        answers = await asyncio.gather(*first, *second)
        assert [answer.batch_size for answer in answers] == [2, 2]
        del wanted[0]
        assert (await engine.run(VerifyWork(prefix_of([5], "third")))).batch_size == 1


async def test_a_call_whose_caller_leaves_while_its_pass_waits_is_not_fed(monkeypatch):
    monkeypatch.setattr(Gathering, "wait_seconds", lambda self, since, ready: 30.0)
    model = HashModel()
    async with Running(model) as engine:
        (task,) = await submitted(engine.run(VerifyWork(prefix_of([1, 2], "leaving"))))
        await state_of(engine)
        task.cancel()
        assert (await at_rest(engine)).running == 0
    assert not model.passes


async def test_sessions_that_rest_are_told_from_those_that_run_and_those_that_are_over(monkeypatch):
    asked = []

    def wait_seconds(self, since, ready):
        asked.append((len(since), ready))
        return 0.0

    monkeypatch.setattr(Gathering, "wait_seconds", wait_seconds)
    async with Running(HashModel()) as engine:
        for name in ("resting", "over"):
            await engine.run(VerifyWork(prefix_of([1, 2], name)))
        await engine.release("over", prefix_of([1, 2], "over").fence, 1)
        asked.clear()
        await engine.run(VerifyWork(prefix_of([3], "newcomer")))
    assert set(asked) == {(1, 1)}


async def test_a_call_that_waits_for_one_that_was_left_counts_as_no_rest(monkeypatch):
    rests = []
    monkeypatch.setattr(Gathering, "rested", lambda self, seconds: rests.append(seconds))
    model = HashModel()
    async with Running(model) as engine:
        await engine.run(VerifyWork(prefix_of([1, 2])))
        gate = Gate(model)
        left = await submitted(engine.run(VerifyWork(prefix_of([1, 2, 3], start=2))))
        await arrived(gate)
        left[0].cancel()
        again = await submitted(engine.run(VerifyWork(prefix_of([1, 2, 3], start=2))))
        gate.open()
        await again[0]
    assert rests[1] < 0


async def test_two_prompts_share_the_passes():
    model = HashModel()
    gate = Gate(model)
    async with Running(model, max_batch_tokens=40) as engine:
        long = await submitted(engine.run(VerifyWork(prefix_of([1] * 400, "long"))))
        await arrived(gate)
        short = await submitted(engine.run(VerifyWork(prefix_of([2] * 60, "short"))))
        gate.open()
        assert (await short[0]).passes == 3
        assert (await long[0]).passes == 12


async def test_rows_wanted_are_whole_even_when_a_pass_cuts_through_them():
    async with Running(HashModel(), max_batch_tokens=2) as engine:
        answer = await engine.run(VerifyWork(prefix_of([1, 2, 3]), [4, 5, 6, 7]))
    assert answer.result == fresh_verdict([1, 2, 3], [4, 5, 6, 7])


async def test_second_call_under_the_same_fence_waits_for_the_first_and_no_longer(monkeypatch):
    monkeypatch.setattr("specdec.model.engine.HEARTBEAT_SECONDS", 1000.0)
    model = HashModel()
    gate = Gate(model)
    async with Running(model) as engine:
        tasks = await submitted(engine.run(DraftWork(prefix_of([1, 2]), 3)))
        await arrived(gate)
        tasks += await submitted(
            engine.run(VerifyWork(prefix_of([1, 2], start=2))),
            engine.release("s", prefix_of([1]).fence, keep_length=0),
        )
        gate.open()
        answers = await asyncio.gather(*tasks)
    assert answers[0].result == fresh_draft([1, 2], 3)
    assert answers[1].result == fresh_verdict([1, 2])
    assert [len(batch) for batch in model.passes] == [1] * 4
    assert engine.state.sessions == 0


async def test_feeds_of_any_number_of_tokens_and_rows():
    steps = iter([Feed([4, 5], 5), Feed([], 2), Feed([6], 0)])
    seen = []

    def step(rows):
        seen.append(rows.tolist())
        return next(steps, None) or Done("end", 6, 6)

    async with Running(HashModel()) as engine:
        answer = await engine.run(OddWork(prefix_of([1, 2, 3]), begin=lambda committed: Feed([], 1), step=step))
    whole = fresh_verdict([1], [2, 3, 4, 5])[2]
    assert seen == [whole[2:3], whole, whole[3:], []]
    assert answer.cached_length == 6


async def test_state_and_heartbeat_follow():
    model = HashModel()
    async with Running(model) as engine:
        await engine.run(VerifyWork(prefix_of([1] * 9)))
        await engine.release("s", prefix_of([1]).fence, keep_length=1000)
    state = engine.state
    assert (state.running, state.sessions, state.cached_tokens, state.reserved_tokens) == (0, 1, 9, 16)
    assert (state.passes, state.fed_tokens, engine.queue_length) == (1, 9, 0)
    assert 0 <= engine.heartbeat_age < 60
