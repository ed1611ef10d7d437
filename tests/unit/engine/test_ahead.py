"""Idle time goes to branches of resting sessions: a call that was foreseen finds its tokens, any other nothing."""

import asyncio
import logging

import pytest

from specdec.errors import NumericalFailure
from specdec.model import ahead
from specdec.model.engine import Done
from specdec.model.prospect import Branch, Prospect
from specdec.model.rest_times import RestTimes
from specdec.model.work import Fork
from tests.engines import state_of
from tests.unit.engine.branching_model import GAMMA, AheadWork, BranchingModel, ForesightedWork, rest, until
from tests.unit.engine.hash_model import STEP, DraftWork, Gate, Running, fence, fresh_draft, prefix_of

COMMITTED = [1, 2, 3]


class FailingAhead(AheadWork):
    def step(self, rows):
        return NumericalFailure("not finite")


def after(committed, drafted, index, token):
    return [*committed, *drafted[:index], token]


@pytest.mark.parametrize("index", range(GAMMA))
async def test_a_call_that_was_foreseen_is_answered_at_once_and_goes_on_as_if_it_had_not_been(index):
    async with Running(BranchingModel(), ahead_tokens=8) as engine:
        outcomes = [(place, token) for place in range(GAMMA) for token in (7, 9)]
        drafted = (await engine.run(ForesightedWork(prefix_of(COMMITTED), outcomes=outcomes))).result
        await rest(engine)
        committed = after(COMMITTED, drafted, index, 9)
        answer = await engine.run(ForesightedWork(prefix_of(committed, start=3), outcomes=[(GAMMA - 1, 5)]))
        assert answer.result == fresh_draft(committed, GAMMA)
        assert (answer.passes, answer.fed_tokens, answer.reused_length) == (0, 0, len(committed))

        await rest(engine)
        committed = after(committed, answer.result, GAMMA - 1, 5)
        answer = await engine.run(ForesightedWork(prefix_of(committed, start=len(committed) - GAMMA)))
        assert (answer.result, answer.passes) == (fresh_draft(committed, GAMMA), 0)


async def test_a_call_that_was_not_foreseen_finds_nothing_and_all_that_was_fed_before():
    async with Running(BranchingModel(), ahead_tokens=8) as engine:
        drafted = (await engine.run(ForesightedWork(prefix_of(COMMITTED), outcomes=[(1, 7)]))).result
        for committed, reused in (
            ([*COMMITTED, drafted[0], 8], 4),  # another token
            ([*COMMITTED[:2], 7], 2),  # at another place
            ([9, *COMMITTED[1:], drafted[0], 7], 0),  # behind another beginning
        ):
            await engine.run(ForesightedWork(prefix_of(COMMITTED), outcomes=[(1, 7)]))
            await rest(engine)
            work = ForesightedWork(prefix_of(committed))
            answer = await engine.run(work)
            assert (answer.result, work.found) == (fresh_draft(committed, GAMMA), None)
            assert (answer.passes, answer.reused_length) == (GAMMA, reused)


@pytest.mark.parametrize(("gamma", "passes"), [(1, 0), (2, 0), (4, 1), (5, 2)])
async def test_what_is_there_is_cut_to_what_is_asked_or_continued(gamma, passes):
    async with Running(BranchingModel(), ahead_tokens=8) as engine:
        drafted = (await engine.run(ForesightedWork(prefix_of(COMMITTED), outcomes=[(2, 7)]))).result
        await rest(engine)
        committed = after(COMMITTED, drafted, 2, 7)
        answer = await engine.run(ForesightedWork(prefix_of(committed), gamma))
        assert (answer.result, answer.passes) == (fresh_draft(committed, gamma), passes)
        assert engine._batching.caches.get("s").cache.length == len(committed) + gamma - 1


async def test_a_call_waits_for_one_pass_ahead_at_most_and_takes_what_is_there():
    model = BranchingModel()
    gate = Gate(model)
    async with Running(model, ahead_tokens=8) as engine:
        gate.open(GAMMA)
        drafted = (await engine.run(ForesightedWork(prefix_of(COMMITTED), outcomes=[(0, 7)]))).result
        for _ in range(GAMMA + 1):
            await asyncio.to_thread(gate.arrived.acquire)  # the last one is the first ahead
        committed = after(COMMITTED, drafted, 0, 7)
        work = ForesightedWork(prefix_of(committed))
        other = asyncio.create_task(engine.run(DraftWork(prefix_of([5], "other"), 2)))
        call = asyncio.create_task(engine.run(work))
        await until(lambda: engine.queue_length == 2)
        gate.open()
        assert (await call).result == fresh_draft(committed, GAMMA)
        assert work.found == 1
        assert (await other).result == fresh_draft([5], 2)
    assert model.passes[GAMMA:] == [[(1, 1)], [(1, 1), (1, 1)], [(1, 1), (1, 1)]]


async def test_nothing_is_done_ahead_while_calls_run():
    model = BranchingModel()
    async with Running(model, ahead_tokens=8) as engine:
        await asyncio.gather(
            engine.run(DraftWork(prefix_of([5], "long"), 40)),
            engine.run(ForesightedWork(prefix_of(COMMITTED), outcomes=[(0, 7)])),
        )
        await rest(engine)
    assert model.ahead == [0] * (len(model.ahead) - GAMMA) + [1] * GAMMA
    assert len(model.ahead) >= 40 + GAMMA


async def test_the_likeliest_go_first_and_a_pass_stays_within_its_bound():
    model = BranchingModel()
    async with Running(model, ahead_tokens=2) as engine:
        outcomes, weights = [(0, 5), (0, 7), (1, 9), (2, 11)], [0.1, 0.4, 0.3, 0.2]
        for name in ("a", "b"):
            await engine.run(ForesightedWork(prefix_of(COMMITTED, name), 4, outcomes, weights))
        await rest(engine)
        assert max(model.ahead) == 2
        assert sum(model.ahead) == 2 * 2 * 4
        for name in ("a", "b"):
            kept = engine._batching.caches.get(name).prospect.branches
            assert [branch.weight for branch in kept] == [0.4, 0.3]


async def test_release_a_smaller_one_too_forgets_what_was_foreseen():
    async with Running(BranchingModel(), ahead_tokens=8) as engine:
        for keep in (0, 2):
            drafted = (await engine.run(ForesightedWork(prefix_of(COMMITTED), outcomes=[(0, 7)]))).result
            await rest(engine)
            await engine.release("s", fence(), keep)
            assert engine._batching.caches.get("s").prospect is None
            work = ForesightedWork(prefix_of(after(COMMITTED, drafted, 0, 7)))
            assert (await engine.run(work)).passes == GAMMA
            assert work.found is None


async def test_branches_take_free_room_alone_and_no_more_than_half_of_it():
    async with Running(BranchingModel(), ahead_tokens=8, cache_tokens=64) as engine:  # eight steps of eight
        outcomes = [(0, token) for token in range(8)]  # three entries each
        await engine.run(ForesightedWork(prefix_of(COMMITTED), outcomes=outcomes))
        await rest(engine)
        caches = engine._batching.caches
        assert caches.room == 32
        assert engine._batching.ahead.passes == GAMMA
        await engine.run(ForesightedWork(prefix_of(COMMITTED, "t"), outcomes=outcomes))
        await rest(engine)
        assert (caches.room, caches.evictions) == (40, 0)
        assert not caches.get("t").cache.branches
        await engine.run(DraftWork(prefix_of(COMMITTED * 7, "u"), 2))  # a call has the other half
        assert (caches.room, caches.evictions) == (64, 0)


async def test_room_is_taken_for_a_pass_that_is_run_alone(monkeypatch):
    weighed = []
    monkeypatch.setattr(RestTimes, "worth_a_pass", lambda *_: weighed.append(1))  # none is
    async with Running(BranchingModel(), ahead_tokens=8) as engine:
        await engine.run(ForesightedWork(prefix_of(COMMITTED * 2), outcomes=[(GAMMA - 1, 7)]))
        await until(lambda: weighed)
    session = engine._batching.caches.get("s")
    assert session.room == session.cache.length == STEP


async def test_a_branch_that_fails_is_dropped_alone():
    class Work(ForesightedWork):
        def forks(self):
            return [*super().forks(), Fork(FailingAhead(4, GAMMA), 3, [9], 0.5)]

    async with Running(BranchingModel(), ahead_tokens=8) as engine:
        await engine.run(Work(prefix_of(COMMITTED), outcomes=[(0, 7)]))
        await rest(engine)
        assert [branch.tokens[0] for branch in engine._batching.caches.get("s").prospect.branches] == [7]


async def test_failed_passes_ahead_are_nobodys_and_end_with_the_third(caplog):
    caplog.set_level(logging.ERROR)
    model = BranchingModel()
    model.broken = True
    committed = list(COMMITTED)
    async with Running(model, ahead_tokens=8) as engine:
        for _ in range(5):
            drafted = (await engine.run(ForesightedWork(prefix_of(committed), outcomes=[(0, 7)]))).result
            assert drafted == fresh_draft(committed, GAMMA)
            await rest(engine)
            committed = after(committed, drafted, 0, 7)
        state = await state_of(engine)
        assert (state.failed_passes_ahead, state.failed_passes) == (3, 0)
    said = [record.message for record in caplog.records if record.name == ahead.__name__]
    assert len(said) == 3
    assert "from now on" in said[-1]


def test_a_prospect_is_unfinished_until_its_branches_are_there():
    """Whoever waits on another thread until all has been done ahead must not see a moment without any."""
    seen = []

    class Watched:
        def forks(self):
            seen.append(prospect.unfinished)
            return []

    prospect = Prospect(Watched())
    prospect.unfold(COMMITTED, 8)
    assert (seen, prospect.unfinished) == ([True], False)
    prospect.branches = [Branch(None, 3, [7], 4, 1.0, [3])]
    prospect.grow(prospect.branches[0], Watched(), COMMITTED, 8)
    assert (seen, prospect.unfinished) == ([True, True], False)


async def test_a_look_at_what_comes_after_a_branch_opens_more_behind_it():
    class Look(AheadWork):
        def step(self, rows):
            outlook = ForesightedWork(prefix_of([0] * self.prefix.base_length), outcomes=[(0, 7), (0, 9)])
            return Done(None, 0, 0, outlook)

    class Work(ForesightedWork):
        def forks(self):
            base_length = self.prefix.base_length
            return [Fork(Look(base_length + GAMMA, 1), base_length + GAMMA - 1, self.drawn[-1:], 0.5)]

    async with Running(BranchingModel(), ahead_tokens=8) as engine:
        drafted = (await engine.run(Work(prefix_of(COMMITTED)))).result
        await rest(engine)
        committed = after(COMMITTED, drafted, GAMMA, 9)
        work = ForesightedWork(prefix_of(committed))
        answer = await engine.run(work)
        assert (answer.result, answer.passes, work.found) == (fresh_draft(committed, GAMMA), 0, GAMMA)
