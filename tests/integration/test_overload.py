"""Too much at once: what is refused is told so, and running answers, health and other readers do not notice."""

import asyncio
import contextlib

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from coordinator import generation
from coordinator.servicer import EVENTS_AHEAD
from specdec.serving.status import from_rpc_error
from specdec.v1 import common_pb2, generation_pb2
from tests.in_process import serving_target
from tests.integration.coordinator_process import coordinating
from tests.integration.model_services import FakeTarget, continuation, serving

SERVING = health_pb2.HealthCheckResponse.SERVING
FLOOD = 40


def request(count=12, **fields):
    params = common_pb2.SamplingParams(max_new_tokens=count, ignore_eos=True)
    return generation_pb2.GenerateRequest(prompt="hi", sampling_params=params, **fields)


def tokens_of(events):
    return [token for event in events for token in event.token_ids]


async def rest(stream):
    """Read a stream that has begun to its end."""
    events = []
    while (event := await stream.read()) is not grpc.aio.EOF:
        events.append(event)
    return events


async def health(channel):
    return (await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=30)).status


def check_refusal(error):
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    known = from_rpc_error(error)
    assert known.retry_seconds > 0
    return known.reason


async def test_a_flood_of_newcomers_is_refused_and_running_answers_go_on(redis_url):
    async with (
        serving_target("synthetic:seed=1,pass_ms=3", max_sessions=2, max_queue=2) as target,
        coordinating(redis_url, [target.address], []) as running,
    ):
        await running.health(SERVING)
        alone = tokens_of(await running.generate(request(100)))
        streams = [running.stub.Generate(request(100)) for _ in range(2)]
        shown = [[await stream.read()] for stream in streams]
        flood = await asyncio.gather(*(running.generate(request(100)) for _ in range(FLOOD)), return_exceptions=True)
        refused = [each for each in flood if isinstance(each, grpc.aio.AioRpcError)]
        assert await health(running.channel) == SERVING
        for events, stream in zip(shown, streams, strict=True):
            events += await rest(stream)
            assert tokens_of(events) == alone
        assert refused
        assert {check_refusal(each) for each in refused} <= {"QUEUE_FULL", "CACHE_FULL"}
        assert all(tokens_of(each) == alone for each in flood if each not in refused)


async def test_more_answers_than_may_run_are_refused_before_any_work(redis_url):
    target = FakeTarget()
    async with (
        serving(target) as server,
        coordinating(redis_url, [f"127.0.0.1:{server.port}"], [], max_answers=1) as running,
    ):
        await running.health(SERVING)
        target.gate = asyncio.Event()
        first = asyncio.create_task(running.generate(request()))
        await target.reached("Verify", 1)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await running.generate(request(session_id="second"))
        assert check_refusal(caught.value) == "QUEUE_FULL"
        assert await health(running.channel) == SERVING
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await running.stub.GetSession(generation_pb2.GetSessionRequest(session_id="second"))
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        target.gate.set()
        assert tokens_of(await first) == continuation(b"hi", 12)
        assert target.calls["Verify"] == 12
        assert tokens_of(await running.generate(request(session_id="second"))) == continuation(b"hi", 12)


async def test_readers_that_do_not_read_keep_nobody_out_and_lose_nothing(redis_url, monkeypatch):
    monkeypatch.setattr(generation, "UNREAD_SECONDS", 0.05)
    async with (
        serving_target("synthetic:seed=1", max_sessions=1) as target,
        coordinating(redis_url, [target.address], []) as running,
    ):
        await running.health(SERVING)
        alone = tokens_of(await running.generate(request(150)))
        await asyncio.gather(*running.servicer._releasing)
        slow = running.stub.Generate(request(150, session_id="slow"))
        events = [await slow.read()]
        newcomer = None
        while newcomer is None:  # the test's time limit ends what keeps them out
            with contextlib.suppress(grpc.aio.AioRpcError):
                newcomer = tokens_of(await running.generate(request(150)))
        assert newcomer == alone
        await asyncio.gather(*running.servicer._releasing)
        session = await running.stub.GetSession(generation_pb2.GetSessionRequest(session_id="slow"))
        assert session.state == generation_pb2.SESSION_STATE_RUNNING
        assert len(session.token_ids) < len("hi") + 150
        events += await rest(slow)
        assert tokens_of(events) == alone


async def test_a_slow_reader_holds_up_its_own_answer_alone(redis_url):
    target = FakeTarget()
    async with serving(target) as server, coordinating(redis_url, [f"127.0.0.1:{server.port}"], []) as running:
        await running.health(SERVING)
        slow = running.stub.Generate(request(150, session_id="slow"))
        events = [await slow.read()]
        others = await asyncio.gather(*(running.generate(request(60)) for _ in range(4)))
        assert [tokens_of(each) for each in others] == [continuation(b"hi", 60)] * 4
        session = await running.stub.GetSession(generation_pb2.GetSessionRequest(session_id="slow"))
        assert session.state == generation_pb2.SESSION_STATE_RUNNING
        assert len(session.token_ids) - session.prompt_length <= EVENTS_AHEAD + 16  # and what is on its way
        events += await rest(slow)
        assert tokens_of(events) == continuation(b"hi", 150)
