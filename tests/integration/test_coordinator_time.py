"""Time: deadlines of clients, which end answers in order and reach the model services, and cancelling."""

import asyncio
import contextlib
from contextlib import asynccontextmanager

import grpc
import pytest

from coordinator.tasks import stop
from specdec.serving.status import from_rpc_error
from specdec.v1 import common_pb2, generation_pb2
from tests.integration.coordinator_process import coordinating
from tests.integration.model_services import FakeDraft, FakeTarget, continuation, serving
from tests.integration.serving_world import deadlines, until
from tests.steps import take_steps

NOBODY = "127.0.0.1:1"  # a port that nobody listens on


class TimedTarget(FakeTarget):
    """A target that knows how long its callers wait, and how many of them it serves."""

    def __init__(self):
        super().__init__()
        self.remaining, self.working = [], 0

    async def Verify(self, request, context):
        self.remaining.append(context.time_remaining())
        self.working += 1
        try:
            return await super().Verify(request, context)
        finally:
            self.working -= 1

    VerifyStream = Verify


class TimedDraft(FakeDraft):
    """The same of a draft."""

    def __init__(self):
        super().__init__()
        self.remaining, self.working = [], 0

    async def Propose(self, request, context):
        self.remaining.append(context.time_remaining())
        self.working += 1
        try:
            return await super().Propose(request, context)
        finally:
            self.working -= 1

    ProposeStream = Propose


def request(session_id="", count=12):
    params = common_pb2.SamplingParams(max_new_tokens=count)
    speculation = generation_pb2.SpeculationParams(gamma=4)
    return generation_pb2.GenerateRequest(
        session_id=session_id, prompt="hi", sampling_params=params, speculation=speculation
    )


async def read(stream):
    """Return the events that come, however the stream ends."""
    events = []
    with contextlib.suppress(grpc.aio.AioRpcError):
        async for event in stream:
            events.append(event)
    return events


@asynccontextmanager
async def between(redis_url, target, draft, **settings):
    async with serving(target) as large, serving(draft) as small:
        addresses = [[f"127.0.0.1:{server.port}"] for server in (large, small)]
        async with coordinating(redis_url, *addresses, **settings) as running:
            for replicas in (running.fleet.targets, running.fleet.drafts):
                await replicas.wait_for(replicas.usable, 30)
            yield running


async def told_in_time(running, wanted, has_begun=lambda: True):
    """Ask with a deadline that is too short for the answer, but neither for its begin nor for being told so."""
    for number, timeout in enumerate(deadlines()):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await running.generate(wanted(number), timeout=timeout)
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        if has_begun() and from_rpc_error(caught.value).reason == "DEADLINE_EXCEEDED":  # the coordinator's own word
            return number, timeout
    raise AssertionError("the coordinator never told")


@pytest.mark.parametrize("silent", ["target", "draft"])
async def test_an_answer_ends_before_its_clients_deadline_and_the_work_for_it_everywhere(redis_url, silent):
    target, draft = TimedTarget(), TimedDraft()
    async with between(redis_url, target, draft) as running:
        service = {"target": target, "draft": draft}[silent]
        service.gate = asyncio.Event()

        def ask(number):
            service.remaining.clear()
            return request(f"s{number}")

        number, timeout = await told_in_time(running, ask, lambda: service.remaining)
        await until(lambda: not target.working and not draft.working)
        assert 0 < draft.remaining[-1] <= timeout
        assert all(0 < each <= timeout for each in target.remaining[-1:])
        assert (await running.left(f"s{number}")).state == generation_pb2.SESSION_STATE_INTERRUPTED
        target.gate = draft.gate = None
        resumed = await running.generate(generation_pb2.GenerateRequest(session_id=f"s{number}", resume_from=0))
        assert [token for event in resumed for token in event.token_ids] == continuation(b"hi", 12)
        assert target.remaining[-1] is None


async def test_waiting_for_a_target_ends_before_the_clients_deadline(redis_url):
    async with coordinating(redis_url, [NOBODY], [NOBODY]) as running:
        await told_in_time(running, lambda _: request())


@pytest.mark.parametrize("silent", ["target", "draft"])
async def test_a_client_that_leaves_stops_the_work_and_frees_caches_and_claim_wherever_they_are(redis_url, silent):
    services = {"target": TimedTarget(), "draft": TimedDraft()}
    async with between(redis_url, services["target"], services["draft"]) as running:
        services[silent].gate = asyncio.Event()
        stream = running.stub.Generate(request("s"))
        await until(lambda: services[silent].working)
        stream.cancel()
        await until(lambda: not any(service.working for service in services.values()))
        asked = [service for service in services.values() if service.remaining]
        for service in asked:
            await service.reached("Release", 1)
            assert service.released == [("s", len("hi"))]
        assert services[silent] in asked
        assert (await running.left("s")).state == generation_pb2.SESSION_STATE_INTERRUPTED


async def test_an_answer_that_is_ended_before_its_first_step_gives_its_claim_up(redis_url):
    async with between(redis_url, TimedTarget(), TimedDraft(), lease_seconds=3600) as running:
        asking = asyncio.create_task(running.generate(request("s")))
        generating = running.servicer._generating
        await until(lambda: generating)
        await stop(*generating)  # as a drain does
        with pytest.raises(grpc.aio.AioRpcError):
            await asking
        session = await running.left("s")
        assert session.state == generation_pb2.SESSION_STATE_INTERRUPTED


async def test_no_error_follows_the_end_of_an_answer_at_whatever_step_a_drain_comes(redis_url):
    async with between(redis_url, TimedTarget(), TimedDraft()) as running:
        store, committed = running.servicer._store, asyncio.Event()
        commit = store.commit

        async def noticed(session):
            await commit(session)
            if session.finish_reason:
                committed.set()

        store.commit = noticed
        for steps in range(30):
            committed.clear()
            stream = running.stub.Generate(request(count=4))
            reading = asyncio.create_task(read(stream))
            await committed.wait()
            await take_steps(steps)
            await stop(*running.servicer._generating)
            if (events := await reading) and events[-1].finish_reason:
                assert await stream.code() is grpc.StatusCode.OK


async def test_a_client_that_leaves_at_whatever_step_ends_its_answer(redis_url):
    async with between(redis_url, TimedTarget(), TimedDraft()) as running:
        for steps in range(0, 300, 2):
            stream = running.stub.Generate(request(count=150))
            await stream.read()
            await take_steps(steps)
            stream.cancel()
            await until(lambda: not running.metric("num_requests_running"))
