"""The server and the caller against each other on a free port: health, reflection, errors, spans, limits, stopping."""

import asyncio
import gc
import itertools
import urllib.request

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from opentelemetry import trace
from opentelemetry.trace import SpanKind, StatusCode
from prometheus_client import CollectorRegistry, Gauge

from specdec.errors import PeerUnavailable, PrefixMissing, SpecdecError
from specdec.serving.calls import call
from specdec.serving.server import LIVENESS, Server
from specdec.serving.settings import ServiceSettings
from specdec.v1 import common_pb2, draft_pb2, draft_pb2_grpc, generation_pb2
from tests.channels import NOTHING_AHEAD
from tests.integration.serving_world import ALL_ERRORS, PROPOSE, Draft, World, by_kind, deadlines, raising, waiting
from tests.recorded_spans import recorded_spans
from tests.steps import take_steps

SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


async def test_health_of_every_service_and_of_the_whole():
    names = ("", "specdec.v1.DraftService", "specdec.v1.GenerationService")
    async with World() as world:
        assert [await world.check(name) for name in names] == [NOT_SERVING] * 3
        await world.server.set_serving(True)
        assert [await world.check(name) for name in names] == [SERVING] * 3
        await world.server.set_serving(False)
        assert [await world.check(name) for name in names] == [NOT_SERVING] * 3
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await world.check("specdec.v1.TargetService")
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND


async def test_health_that_was_cut_off_while_it_was_told_is_told_whole_the_next_time():
    names = ("", "specdec.v1.DraftService", "specdec.v1.GenerationService")
    async with World() as world:
        watches = [world.health.Watch(health_pb2.HealthCheckRequest(service=name)) for name in names]
        for watch in watches:
            await watch.read()
        for before, steps in itertools.product(range(4), range(8)):
            await world.server.set_serving(False)
            await take_steps(before)  # whose watchers are being told still
            telling = asyncio.create_task(world.server.set_serving(True))
            await take_steps(steps)
            telling.cancel()
            await asyncio.wait((telling,))
            await world.server.set_serving(True)
            assert [await world.check(name) for name in names] == [SERVING] * 3


async def test_a_watcher_that_does_not_read_holds_up_nobody_who_tells_asks_or_ends():
    async with World() as world, grpc.aio.insecure_channel(world.address, options=NOTHING_AHEAD) as channel:
        unread = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        await unread.read()
        for serving in (True, False) * 30:
            await asyncio.wait_for(world.server.set_serving(serving), 20)  # before a ping stirs the connection
            assert await world.check() == (SERVING if serving else NOT_SERVING)
        await asyncio.wait_for(world.stop(3600), 20)


async def test_liveness_is_serving_whatever_the_services_are_and_while_they_drain():
    async with World() as world:
        watch = world.health.Watch(health_pb2.HealthCheckRequest(service=LIVENESS))
        assert (await watch.read()).status == SERVING
        draining = asyncio.Event()

        async def drain():
            found.append((await world.check(""), await world.check(LIVENESS)))
            draining.set()

        found = [(await world.check(""), await world.check(LIVENESS))]
        for serving in (True, False, True):
            await world.server.set_serving(serving)
            found.append((await world.check(""), await world.check(LIVENESS)))
        ending = asyncio.create_task(world.server.run_until_end(drain))
        world.server.end()
        await draining.wait()
        await world.server.set_serving(True)
        assert found == [(each, SERVING) for each in (NOT_SERVING, SERVING, NOT_SERVING, SERVING, NOT_SERVING)]
        await ending
        assert await watch.read() is grpc.aio.EOF


async def test_reflection_lists_every_service():
    async with World() as world:
        stub = reflection_pb2_grpc.ServerReflectionStub(world.channel)
        stream = stub.ServerReflectionInfo(iter([reflection_pb2.ServerReflectionRequest(list_services="")]), timeout=30)
        answer = await stream.read()
    assert {each.name for each in answer.list_services_response.service} == {
        "specdec.v1.DraftService",
        "specdec.v1.GenerationService",
        "grpc.health.v1.Health",
        "grpc.reflection.v1alpha.ServerReflection",
    }


@pytest.mark.parametrize("kind", ALL_ERRORS)
async def test_every_error_crosses_as_itself(kind):
    sent = kind("größer als 3", field="prefix.tokens", retry_seconds=1.25, metadata={"limit": "3"})
    async with World() as world:
        world.draft.behave = raising(sent)
        with pytest.raises(SpecdecError) as caught:
            await world.propose()
    got = caught.value
    assert type(got) is kind
    assert vars(got) == vars(sent) | {"from_peer": True}


async def test_uncaught_error_tells_the_caller_nothing_but_the_trace():
    async with World() as world:
        world.draft.behave = raising(ValueError("secret /path/x"))
        with recorded_spans() as spans:
            with pytest.raises(SpecdecError) as caught:
                await world.propose()
            await world.idle()
            span = by_kind(spans, SpanKind.SERVER)
    assert type(caught.value) is SpecdecError
    assert caught.value.message == f"internal error, trace_id={trace.format_trace_id(span.context.trace_id)}"
    assert span.status.status_code is StatusCode.ERROR
    assert span.attributes["rpc.response.status_code"] == "INTERNAL"
    assert span.attributes["error.type"] == "INTERNAL"
    assert [dict(event.attributes) for event in span.events] == [{"exception.type": "ValueError"}]
    assert "secret" not in span.to_json()


async def test_server_that_is_away_is_peer_unavailable():
    async with World() as world:
        await world.stop(0)
        with recorded_spans() as spans:
            with pytest.raises(PeerUnavailable):
                await world.propose()
            span = by_kind(spans, SpanKind.CLIENT)
    assert span.attributes["error.type"] == "UNAVAILABLE"
    assert span.status.status_code is StatusCode.ERROR


async def test_spans_of_a_good_call():
    async with World() as world:
        with recorded_spans() as spans:
            await world.propose()
            await world.idle()
            client, server = by_kind(spans, SpanKind.CLIENT), by_kind(spans, SpanKind.SERVER)
    assert client.name == server.name == "Propose"
    assert server.parent.span_id == client.context.span_id
    assert server.context.trace_id == client.context.trace_id
    both = {"rpc.system.name": "grpc", "rpc.method": PROPOSE, "rpc.response.status_code": "OK"}
    assert dict(server.attributes) == both
    assert dict(client.attributes) == both | {"server.address": "127.0.0.1", "server.port": world.server.port}
    assert client.status.status_code is server.status.status_code is StatusCode.UNSET


async def test_refusal_is_an_error_of_the_caller_alone():
    async with World() as world:
        world.draft.behave = raising(PrefixMissing("ask again"))
        with recorded_spans() as spans:
            with pytest.raises(PrefixMissing):
                await world.propose()
            await world.idle()
            client, server = by_kind(spans, SpanKind.CLIENT), by_kind(spans, SpanKind.SERVER)
    assert client.status.status_code is StatusCode.ERROR
    assert client.attributes["error.type"] == "FAILED_PRECONDITION"
    assert server.status.status_code is StatusCode.UNSET
    assert "error.type" not in server.attributes
    for span in (client, server):
        assert span.attributes["rpc.response.status_code"] == "FAILED_PRECONDITION"
        assert span.attributes["specdec.error.reason"] == "PREFIX_MISSING"
        assert span.events == ()


async def test_deadline_reaches_the_handler_and_both_spans():
    for timeout in deadlines():
        async with World() as world:
            await world.check()  # connected
            world.draft.behave = waiting
            with recorded_spans() as spans:
                with pytest.raises(PeerUnavailable) as caught:
                    await world.propose(timeout=timeout)
                await world.stop(3600)  # the deadline has ended the handler
            if not world.draft.entered.is_set():
                continue
            client, server = by_kind(spans, SpanKind.CLIENT), by_kind(spans, SpanKind.SERVER)
            # A request that took longer on its way than its cancellation has a deadline there that is too late.
            if server.attributes["rpc.response.status_code"] != "CANCELLED":
                break
    assert caught.value.metadata == {"grpc_code": "DEADLINE_EXCEEDED"}
    for span in (client, server):
        assert span.attributes["rpc.response.status_code"] == "DEADLINE_EXCEEDED"
        assert span.status.status_code is StatusCode.ERROR


async def test_cancelling_the_caller_cancels_the_handler():
    async with World() as world:
        world.draft.behave = waiting
        with recorded_spans() as spans:
            task = asyncio.create_task(world.propose())
            await world.draft.entered.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await world.draft.ended.wait()
            await world.stop(30)
            client, server = by_kind(spans, SpanKind.CLIENT), by_kind(spans, SpanKind.SERVER)
    assert client.attributes["rpc.response.status_code"] == server.attributes["rpc.response.status_code"] == "CANCELLED"
    assert server.status.status_code is StatusCode.UNSET


async def test_cancellation_that_is_not_the_callers_is_answered():
    async with World() as world:
        world.draft.behave = raising(asyncio.CancelledError())
        with pytest.raises(SpecdecError) as caught:
            await world.propose()
    assert caught.value.message.startswith("internal error, trace_id=")


@pytest.fixture
def log(caplog):
    """What is logged, but for what earlier tests have left behind: that is told of when it is collected."""
    gc.freeze()
    yield caplog
    gc.unfreeze()


async def test_error_that_replaces_a_cancellation_goes_nowhere(log):
    async def replacing(request, context):
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise ValueError("late") from None

    async with World() as world:
        world.draft.behave = replacing
        with recorded_spans() as spans:
            task = asyncio.create_task(world.propose())
            await world.draft.entered.wait()
            task.cancel()
            await world.draft.ended.wait()
            await world.stop(30)
            span = by_kind(spans, SpanKind.SERVER)
    assert span.attributes["rpc.response.status_code"] == "CANCELLED"
    assert log.messages == []


@pytest.mark.parametrize("prompt", ["a", "a" * 2**20])  # the long one leaves the generator suspended, its reader slow
async def test_left_stream_ends_generator_and_span_at_once(prompt, log):
    async with World() as world:
        with recorded_spans() as spans:
            stream = world.generations.Generate(generation_pb2.GenerateRequest(prompt=prompt))
            await stream.read()
            await stream.read()
            assert spans.get_finished_spans() == ()
            stream.cancel()
            await world.generation.ended.wait()
            await world.stop(30)
            span = by_kind(spans, SpanKind.SERVER)
    assert span.name == "generate"
    assert span.attributes["rpc.method"] == "specdec.v1.GenerationService/Generate"
    assert span.attributes["rpc.response.status_code"] == "CANCELLED"
    assert span.attributes["specdec.rounds"] >= 1
    assert span.status.status_code is StatusCode.UNSET
    assert world.generation.how in (asyncio.CancelledError, GeneratorExit)
    assert log.messages == []


async def test_stream_that_fails_after_an_event_ends_with_its_status():
    async with World() as world:
        stream = world.generations.Generate(generation_pb2.GenerateRequest(), timeout=30)
        await stream.read()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stream.read()
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION


async def test_foreign_trace_context_is_continued_and_plumbing_makes_no_spans():
    parent = ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
    async with World() as world:
        with recorded_spans() as spans:
            await world.check()
            stub = reflection_pb2_grpc.ServerReflectionStub(world.channel)
            requests = iter([reflection_pb2.ServerReflectionRequest(list_services="")])
            await stub.ServerReflectionInfo(requests, metadata=[parent], timeout=30).read()
            await world.drafts.Release(common_pb2.ReleaseRequest(), metadata=[parent, ("x-bin", b"\xff")], timeout=30)
            await world.idle()
            span = by_kind(spans, SpanKind.SERVER)
    assert span.name == "Release"
    assert trace.format_trace_id(span.context.trace_id) == "0af7651916cd43dd8448eb211c80319c"
    assert trace.format_span_id(span.parent.span_id) == "b7ad6b7169203331"


async def test_messages_up_to_the_limit_pass_both_ways():
    tokens = [2**31] * 3_000_000  # 15 MB as varints of 5 bytes
    async with World() as world:
        answer = await world.propose(draft_pb2.ProposeRequest(prefix={"tokens": tokens}))
        assert answer.cached_length == 3_000_000

        async def long_answer(request, context):
            return draft_pb2.ProposeResponse(proposal={"draft_tokens": tokens})

        world.draft.behave = long_answer
        assert len((await world.propose()).proposal.draft_tokens) == 3_000_000


async def test_message_beyond_the_limit_is_refused():
    async with World() as world, grpc.aio.insecure_channel(world.address) as channel:
        stub = draft_pb2_grpc.DraftServiceStub(channel)
        request = draft_pb2.ProposeRequest(prefix={"tokens": [2**31] * 3_500_000})
        with pytest.raises(SpecdecError) as caught:
            await call(stub.Propose, PROPOSE, request, timeout=30, address=world.address)
    assert caught.value.metadata == {"grpc_code": "RESOURCE_EXHAUSTED"}


async def test_a_port_is_not_shared():
    async with World() as world:
        second = Server(ServiceSettings(port=world.server.port), CollectorRegistry())
        with pytest.raises(RuntimeError):
            await second.start()
        await second.stop(0)


async def test_metrics_port_is_off_unless_asked_for():
    async with World() as world:
        assert world.server.metrics_port == 0
    async with World(metrics_port=-1) as world:
        Gauge("depth", "Depth.", registry=world.registry).set(3)
        url = f"http://127.0.0.1:{world.server.metrics_port}/metrics"
        page = await asyncio.to_thread(lambda: urllib.request.urlopen(url, timeout=30).read().decode())
    assert "depth 3.0" in page.splitlines()


async def test_stop_lets_a_call_finish_and_does_not_wait_for_watchers():
    go = asyncio.Event()

    async def slow(request, context):
        await go.wait()
        return draft_pb2.ProposeResponse(cached_length=7)

    async with World() as world:
        world.draft.behave = slow
        watch = world.health.Watch(health_pb2.HealthCheckRequest())
        reflect = reflection_pb2_grpc.ServerReflectionStub(world.channel).ServerReflectionInfo()
        await reflect.write(reflection_pb2.ServerReflectionRequest(list_services=""))
        await watch.read()
        await reflect.read()
        task = asyncio.create_task(world.propose())
        await world.draft.entered.wait()
        stopping = asyncio.create_task(world.stop(3600))
        async with grpc.aio.insecure_channel(world.address) as late:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await draft_pb2_grpc.DraftServiceStub(late).Release(common_pb2.ReleaseRequest(), timeout=30)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert not stopping.done()
        go.set()
        assert (await task).cached_length == 7
        await stopping
        assert await watch.code() is await reflect.code() is grpc.StatusCode.OK


async def test_stop_cancels_what_outlives_the_grace():
    async with World() as world:
        world.draft.behave = waiting
        task = asyncio.create_task(world.propose())
        await world.draft.entered.wait()
        await world.stop(0.1)
        assert world.draft.ended.is_set()
        with pytest.raises(PeerUnavailable):
            await task


async def test_methods_that_block_the_loop_are_refused():
    class Blocking(Draft):
        def Propose(self, request, context):
            return draft_pb2.ProposeResponse()

    server = Server(ServiceSettings(), CollectorRegistry())
    with pytest.raises(TypeError, match="DraftService/Propose"):
        draft_pb2_grpc.add_DraftServiceServicer_to_server(Blocking(), server)
