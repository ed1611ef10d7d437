"""Several replicas of a service: which of them a session goes to, and how those that hang or break are left out."""

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager

from coordinator.replica import LONGEST_RETRY_SECONDS, Replica
from specdec.errors import SpecdecError
from specdec.v1 import common_pb2, generation_pb2
from tests.integration.coordinator_process import coordinating
from tests.integration.model_services import FakeDraft, FakeTarget, continuation, serving

UNAVAILABLE = generation_pb2.FALLBACK_REASON_DRAFT_UNAVAILABLE


def request(count=12, **fields):
    params = common_pb2.SamplingParams(max_new_tokens=count)
    speculation = generation_pb2.SpeculationParams(gamma=4)
    return generation_pb2.GenerateRequest(prompt="hi", sampling_params=params, speculation=speculation, **fields)


def tokens_of(events):
    return [token for event in events for token in event.token_ids]


async def usable(replicas, count):
    await replicas.wait_for(lambda: len(replicas.usable()) == count, 30)


@asynccontextmanager
async def between(redis_url, targets, drafts, **settings):
    """Run a coordinator between services of ours, all of which are in use."""
    async with AsyncExitStack() as stack:
        addresses = [
            [f"127.0.0.1:{(await stack.enter_async_context(serving(service))).port}" for service in services]
            for services in (targets, drafts)
        ]
        running = await stack.enter_async_context(coordinating(redis_url, *addresses, **settings))
        await usable(running.fleet.targets, len(targets))
        await usable(running.fleet.drafts, len(drafts))
        yield running


class HangingDraft(FakeDraft):
    """A draft whose model can hang, while health and what it serves are answered as before."""

    def __init__(self):
        super().__init__()
        self.going = asyncio.Event()
        self.going.set()
        self.probes = self.most_probes = 0

    async def committed(self, message):
        await self.going.wait()
        return await super().committed(message)

    async def Release(self, request, context):
        self.probes += 1
        self.most_probes = max(self.probes, self.most_probes)
        try:
            await self.count("Probe")
            await self.going.wait()
            return await super().Release(request, context)
        finally:
            self.probes -= 1


async def test_a_draft_that_hangs_costs_one_round_and_is_probed_by_nobodys_calls_until_it_is_back(redis_url):
    draft = HangingDraft()
    async with between(redis_url, [FakeTarget()], [draft], propose_timeout=0.2) as running:
        draft.going.clear()
        events = await running.generate(request(60))
        assert tokens_of(events) == continuation(b"hi", 60)
        assert {event.round.fallback for event in events[:-1]} == {UNAVAILABLE}
        assert draft.calls["Propose"] == 1
        await draft.reached("Probe", 3)
        assert await running.generate(request(20))
        assert (draft.calls["Propose"], draft.most_probes) == (1, 1)
        draft.going.set()
        await usable(running.fleet.drafts, 1)
        assert not any(event.round.fallback for event in await running.generate(request(20)))


async def test_a_draft_whose_model_is_broken_leaves_its_sessions_to_another(redis_url):
    broken, well = FakeDraft(), FakeDraft()
    async with between(redis_url, [FakeTarget()], [broken, well]) as running:
        broken.errors = [SpecdecError("the forward pass failed")] * 1000
        for _ in range(4):  # which of the two an answer begins with is left to chance
            events = await running.generate(request(20))
            assert tokens_of(events) == continuation(b"hi", 20)
            assert not any(event.round.fallback for event in events)
        assert broken.calls["Propose"] <= 4


def test_a_replica_is_left_alone_ever_longer():
    pauses = []
    for failures in range(1, 40):
        pauses.append(Replica("host:1", None, None, failures=failures).pause)
    assert pauses[:4] == [0, 0.5, 1, 2]
    assert pauses == sorted(pauses)
    assert pauses[-1] == LONGEST_RETRY_SECONDS
