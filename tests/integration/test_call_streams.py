"""A stream of requests as a sequence of calls: what each answers, fails with and is traced as, and how streams end."""

import asyncio

import grpc
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import SpanKind, StatusCode

from specdec.errors import NotReady, PeerUnavailable, PrefixMissing, SpecdecError
from specdec.v1 import draft_pb2
from tests.integration.serving_world import ALL_ERRORS, PROPOSE, World, by_kind, deadlines, raising, until, waiting
from tests.recorded_spans import recorded_spans
from tests.steps import cut_after


def request(length):
    return draft_pb2.ProposeRequest(prefix={"tokens": range(length)})


async def call(stream, length=1, timeout=30.0):
    """Return how long the server found the prefix of a request."""
    return (await stream.call(request(length), timeout=timeout)).cached_length


async def streams_between_requests(world, count):
    await until(lambda: len(world.server._calls._between) == count)


async def test_calls_of_one_stream_answer_what_calls_of_their_own_do():
    opened = []
    async with World() as world:
        stream, method = world.stream(), world.drafts.ProposeStream
        stream._method = lambda: opened.append(method()) or opened[-1]
        for length in (1, 3, 2):
            assert await call(stream, length) == (await world.propose(request(length))).cached_length == length
        [one] = opened
        assert not one.done()
        stream.close()
        assert one.done()
        await streams_between_requests(world, 0)


async def test_every_error_crosses_as_itself_and_ends_its_stream_alone():
    async with World() as world:
        other, behave = world.stream(), world.draft.behave
        assert await call(other, 5) == 5
        stream = world.stream()
        for kind in ALL_ERRORS:
            sent = kind("größer als 3", field="prefix.tokens", retry_seconds=1.25, metadata={"limit": "3"})
            world.draft.behave = raising(sent)
            with pytest.raises(SpecdecError) as caught:
                await call(stream)
            assert type(caught.value) is kind
            assert vars(caught.value) == vars(sent) | {"from_peer": True}
            assert stream._stream.done()
            world.draft.behave = behave
            assert await call(stream, 4) == 4
        assert await call(other, 6) == 6


async def test_each_request_has_spans_of_its_own_under_its_callers():
    parents = []
    async with World() as world:
        stream = world.stream()
        with recorded_spans() as spans:
            for error in (None, PrefixMissing("ask again"), ValueError("secret")):
                if error:
                    world.draft.behave = raising(error)
                parent = TracerProvider().get_tracer("test").start_span("round")
                parents.append(parent.get_span_context())
                with trace.use_span(parent):
                    await asyncio.gather(call(stream), return_exceptions=True)
            await world.idle()
            finished = spans.get_finished_spans()
    clients = [span for span in finished if span.kind is SpanKind.CLIENT]
    servers = [span for span in finished if span.kind is SpanKind.SERVER]
    assert [(span.parent.trace_id, span.parent.span_id) for span in clients] == [
        (parent.trace_id, parent.span_id) for parent in parents
    ]
    assert [span.parent.span_id for span in servers] == [span.context.span_id for span in clients]
    assert {span.name for span in finished} == {"Propose"}
    assert {span.attributes["rpc.method"] for span in finished} == {f"{PROPOSE}Stream"}
    statuses = ["OK", "FAILED_PRECONDITION", "INTERNAL"]
    assert [span.attributes["rpc.response.status_code"] for span in clients] == statuses
    assert [span.attributes["rpc.response.status_code"] for span in servers] == statuses
    unset, wrong = StatusCode.UNSET, StatusCode.ERROR
    assert [span.status.status_code for span in clients] == [unset, wrong, wrong]
    assert [span.status.status_code for span in servers] == [unset, unset, wrong]
    assert not any("secret" in span.to_json() for span in finished)


async def test_deadline_is_the_requests_own():
    async with World() as world:
        stream, behave = world.stream(), world.draft.behave
        assert await call(stream, 2) == 2
        world.draft.entered.clear()
        world.draft.ended.clear()
        world.draft.behave = waiting
        for timeout in deadlines():
            with recorded_spans() as spans:
                with pytest.raises(PeerUnavailable) as caught:
                    await call(stream, timeout=timeout)
                if not world.draft.entered.is_set():
                    continue
                await world.draft.ended.wait()
                client = by_kind(spans, SpanKind.CLIENT)
            break
        assert caught.value.metadata == {"grpc_code": "DEADLINE_EXCEEDED"}
        assert client.attributes["rpc.response.status_code"] == "DEADLINE_EXCEEDED"
        assert client.status.status_code is StatusCode.ERROR
        world.draft.behave = behave
        assert await call(stream, 3) == 3


async def test_cancelling_the_caller_cancels_the_handler_and_nothing_else():
    async with World() as world:
        stream, other, behave = world.stream(), world.stream(), world.draft.behave
        assert await call(other) == 1
        world.draft.entered.clear()
        world.draft.ended.clear()
        world.draft.behave = waiting
        with recorded_spans() as spans:
            task = asyncio.create_task(call(stream))
            await world.draft.entered.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await world.draft.ended.wait()
            await world.idle()
            client, server = by_kind(spans, SpanKind.CLIENT), by_kind(spans, SpanKind.SERVER)
        assert client.attributes["rpc.response.status_code"] == "CANCELLED"
        assert server.attributes["rpc.response.status_code"] == "CANCELLED"
        assert server.status.status_code is StatusCode.UNSET
        world.draft.behave = behave
        assert [await call(each, 3) for each in (stream, other)] == [3, 3]


@pytest.mark.parametrize("streamed", [True, False])
async def test_a_cancelled_call_ends_cancelled_at_whatever_step(streamed):
    async with World() as world:
        stream = world.stream()

        async def ask(length):
            return await call(stream, length) if streamed else (await world.propose(request(length))).cached_length

        cut = 0
        for steps in range(120):
            assert await ask(1 + steps) == 1 + steps  # no answer of a call that was cut before
            cut += await cut_after(steps, ask(500))
        assert cut > 3


async def test_stop_finishes_the_request_in_work_and_does_not_wait_for_streams_between_two():
    go = asyncio.Event()

    async def slow(request, context):
        await go.wait()
        return draft_pb2.ProposeResponse(cached_length=7)

    async with World() as world:
        idle, busy = world.stream(), world.stream()
        assert await call(idle) == await call(busy) == 1
        world.draft.entered.clear()
        world.draft.behave = slow
        working = asyncio.create_task(call(busy))
        await world.draft.entered.wait()
        stopping = asyncio.create_task(world.stop(3600))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await idle._stream.read()
        assert caught.value.details() == "the server is stopping"
        assert not stopping.done()
        go.set()
        assert await working == 7
        await stopping
        for stream in (idle, busy):
            with pytest.raises(PeerUnavailable):
                await call(stream)


async def test_request_that_meets_the_end_of_its_stream_is_told_so():
    async with World() as world:
        stream = world.stream()
        assert await call(stream) == 1
        world.server._calls.close_streams()  # has not reached the caller yet
        with pytest.raises((NotReady, PeerUnavailable)):  # whether it could still be sent or not: try elsewhere
            await call(stream)


async def test_streams_may_be_closed_again_while_the_first_end_is_on_its_way():
    async with World() as world:
        streams = [world.stream() for _ in range(3)]
        assert [await call(stream) for stream in streams] == [1, 1, 1]
        await streams_between_requests(world, 3)
        world.server._calls.close_streams()
        await asyncio.sleep(0)  # the waits are over, their calls are not
        world.server._calls.close_streams()


async def test_server_that_goes_away_in_mid_request_or_between_two(held_port):
    async with World(port=held_port) as world:
        working, between = world.stream(), world.stream()
        assert await call(between) == 1
        world.draft.entered.clear()
        world.draft.behave = waiting
        task = asyncio.create_task(call(working))
        await world.draft.entered.wait()
        await world.stop(0)
        with pytest.raises(PeerUnavailable):
            await task
        async with World(port=held_port) as again:
            await asyncio.wait_for(world.channel.channel_ready(), 30)
            assert [await call(stream, 3) for stream in (working, between)] == [3, 3]
            assert again.draft.ended.is_set()


async def test_closed_streams_leave_nothing_open():
    async with World() as world:
        kept = world.stream()
        assert await call(kept) == 1
        for length in range(1, 40):
            stream = world.stream()
            assert await call(stream, length) == length
            stream.close()
            stream.close()
        await streams_between_requests(world, 1)
        assert await call(kept, 2) == 2
