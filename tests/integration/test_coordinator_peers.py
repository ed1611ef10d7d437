"""Peers that come late, go, move and mismatch: waited for, failed over, refused; never a wrong text."""

import asyncio
from contextlib import AsyncExitStack

import grpc
import pytest
from grpc_health.v1 import health_pb2
from structlog.testing import capture_logs

from coordinator import fleet
from specdec.serving import telemetry
from specdec.serving.status import from_rpc_error
from specdec.v1 import common_pb2, generation_pb2
from tests.integration.coordinator_process import coordinating
from tests.integration.model_services import FakeDraft, FakeTarget, continuation, serving
from tests.recorded_spans import recorded_spans

SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
NOBODY = "127.0.0.1:1"  # a port that nobody listens on


def request(count=12, **fields):
    return generation_pb2.GenerateRequest(
        prompt="hi", sampling_params=common_pb2.SamplingParams(max_new_tokens=count), **fields
    )


def tokens_of(events):
    return [token for event in events for token in event.token_ids]


async def usable(replicas, count):
    await replicas.wait_for(lambda: len(replicas.usable()) == count, 30)


def address(server):
    return f"127.0.0.1:{server.port}"


async def read(stream, events, place, action):
    """Read a stream into ``events``; do something after so many of them."""
    async for event in stream:
        events.append(event)
        if len(events) == place:
            await action()


async def refusal(running, wanted):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await running.generate(wanted)
    return from_rpc_error(caught.value)


async def test_without_a_target_nothing_is_served_and_a_request_is_told_so(redis_url):
    async with coordinating(redis_url, [NOBODY], [NOBODY], peer_wait_seconds=0.1) as running:
        await running.health(NOT_SERVING)
        error = await refusal(running, request())
        assert (error.code, error.reason) == ("UNAVAILABLE", "NOT_READY")
        assert error.retry_seconds > 0


async def test_a_target_that_comes_late_is_waited_for_and_a_missing_draft_is_not(redis_url, held_port):
    target = FakeTarget()
    async with AsyncExitStack() as stack:
        running = await stack.enter_async_context(coordinating(redis_url, [f"127.0.0.1:{held_port}"], [NOBODY]))
        generating = asyncio.create_task(running.generate(request()))
        await running.health(NOT_SERVING)
        await stack.enter_async_context(serving(target, held_port))
        events = await generating
        await running.health(SERVING)
        assert tokens_of(events) == continuation(b"hi", 12)
        assert {event.round.fallback for event in events[:-1]} == {generation_pb2.FALLBACK_REASON_DRAFT_UNAVAILABLE}


async def test_a_tokenizer_that_cannot_be_read_is_said_and_tried_again(redis_url, monkeypatch, capfd):
    failures = [KeyError("added_tokens"), OSError("not there")]
    load = fleet.load_tokenizer

    def fail_first(source):
        if failures:
            raise failures.pop()
        return load(source)

    monkeypatch.setattr(fleet, "load_tokenizer", fail_first)
    async with serving(FakeTarget()) as target, coordinating(redis_url, [address(target)], [NOBODY]) as running:
        assert tokens_of(await running.generate(request())) == continuation(b"hi", 12)
    assert not failures
    said = "".join(capfd.readouterr())
    assert "not there" in said
    assert "added_tokens" in said


async def test_a_draft_of_another_vocabulary_is_refused_and_nothing_served(redis_url):
    for wrong in ({"vocabulary_fingerprint": "v2"}, {"vocabulary_size": 513}):
        async with (
            serving(FakeTarget()) as target,
            serving(FakeDraft(**wrong)) as draft,
            coordinating(redis_url, [address(target)], [address(draft)]) as running,
        ):
            drafts = running.fleet.drafts
            await drafts.wait_for(lambda drafts=drafts: any(each.refusal for each in drafts.answering()), 30)
            error = await refusal(running, request())
            assert (error.code, error.reason) == ("FAILED_PRECONDITION", "FINGERPRINT_MISMATCH")
            assert "its vocabulary is not that of fake" in error.message
            assert address(draft) not in error.message  # the log has it
            await running.health(NOT_SERVING)


async def test_a_target_of_another_vocabulary_than_the_tokenizer_is_refused_until_one_fits(redis_url, held_port):
    """Else a forgotten COORDINATOR_TOKENIZER serves nonsense, and says that it is well."""
    async with (
        serving(FakeTarget(model_fingerprint="m2", vocabulary_fingerprint="v2")) as target,
        AsyncExitStack() as stack,
    ):
        running = await stack.enter_async_context(
            coordinating(redis_url, [address(target), f"127.0.0.1:{held_port}"], [], tokenizer="bytes")
        )
        targets = running.fleet.targets
        await targets.wait_for(lambda: any(each.refusal for each in targets.answering()), 30)
        error = await refusal(running, request())
        assert (error.code, error.reason) == ("FAILED_PRECONDITION", "FINGERPRINT_MISMATCH")
        assert error.message == "every target is refused: the vocabulary of fake is not that of COORDINATOR_TOKENIZER"
        await running.health(NOT_SERVING)
        await stack.enter_async_context(serving(FakeTarget(), held_port))
        await running.health(SERVING)
        assert tokens_of(await running.generate(request())) == continuation(b"hi", 12)
        assert [each.address for each in targets.usable()] == [f"127.0.0.1:{held_port}"]


async def test_one_draft_that_matches_is_enough(redis_url):
    wrong, right = FakeDraft(vocabulary_fingerprint="v2"), FakeDraft()
    async with (
        serving(FakeTarget()) as target,
        serving(wrong) as one,
        serving(right) as other,
        coordinating(redis_url, [address(target)], [address(one), address(other)]) as running,
    ):
        await usable(running.fleet.drafts, 1)
        events = await running.generate(request())
        assert events[-1].usage.spec_rounds > 0
        assert wrong.calls["Propose"] == 0


async def test_target_replicas_of_another_model_are_refused(redis_url):
    one, other = FakeTarget(), FakeTarget(model_fingerprint="m2")
    async with (
        serving(one) as first,
        serving(other) as second,
        coordinating(redis_url, [address(first), address(second)], [NOBODY]) as running,
    ):
        await running.fleet.targets.wait_for(lambda: len(running.fleet.targets.answering()) == 2, 30)
        await usable(running.fleet.targets, 1)
        for _ in range(3):
            await running.generate(request())
        assert sorted(target.calls["Verify"] > 0 for target in (one, other)) == [False, True]


async def test_a_session_moves_to_another_replica_when_its_own_goes(redis_url):
    targets, drafts = [FakeTarget(), FakeTarget()], [FakeDraft(), FakeDraft()]
    async with AsyncExitStack() as stack:
        stacks = {model: await stack.enter_async_context(AsyncExitStack()) for model in targets + drafts}
        servers = {model: await stacks[model].enter_async_context(serving(model)) for model in stacks}
        running = await stack.enter_async_context(
            coordinating(
                redis_url,
                [address(servers[model]) for model in targets],
                [address(servers[model]) for model in drafts],
            )
        )
        await usable(running.fleet.targets, 2)
        await usable(running.fleet.drafts, 2)
        events = []
        async for event in running.stub.Generate(request(60)):
            events.append(event)
            if len(events) == 2:
                for models in (targets, drafts):
                    busy = max(models, key=lambda model: sum(model.calls.values()))
                    await stacks[busy].aclose()
        assert tokens_of(events) == continuation(b"hi", 60)
        assert all(model.calls["Verify"] for model in targets)


async def test_a_target_that_restarts_is_waited_for_in_the_middle_of_an_answer(redis_url, held_port):
    target = FakeTarget()
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(AsyncExitStack())
        server = await first.enter_async_context(serving(target, held_port))
        running = await stack.enter_async_context(coordinating(redis_url, [address(server)], []))
        await running.health(SERVING)
        events = []
        async for event in running.stub.Generate(request(60)):
            events.append(event)
            if len(events) == 2:
                await first.aclose()
                target.held.clear()
                await stack.enter_async_context(serving(target, held_port))
        assert tokens_of(events) == continuation(b"hi", 60)


async def test_a_target_that_comes_back_and_takes_fewer_draft_tokens_gets_no_more(redis_url, held_port):
    target, draft = FakeTarget(), FakeDraft()
    draft.right = 16
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(AsyncExitStack())
        server = await first.enter_async_context(serving(target, held_port))
        drafting = await stack.enter_async_context(serving(draft))
        running = await stack.enter_async_context(coordinating(redis_url, [address(server)], [address(drafting)]))
        await running.health(SERVING)
        await usable(running.fleet.drafts, 1)
        wanted = request(60, speculation=generation_pb2.SpeculationParams(gamma=8))
        assert max(event.round.gamma for event in await running.generate(wanted)) == 8
        await first.aclose()
        await running.health(NOT_SERVING)  # noticed, so that what it says now is asked for
        target.info.max_gamma = 2
        await stack.enter_async_context(serving(target, held_port))
        await running.health(SERVING)
        events = await running.generate(wanted)
        assert tokens_of(events) == continuation(b"hi", 60)
        assert max(event.round.gamma for event in events) == 2


async def test_a_target_that_stays_away_ends_the_stream_and_the_answer_can_be_resumed(redis_url, held_port):
    target = FakeTarget()
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(AsyncExitStack())
        server = await first.enter_async_context(serving(target, held_port))
        running = await stack.enter_async_context(coordinating(redis_url, [address(server)], [], peer_wait_seconds=0.3))
        await running.health(SERVING)
        events = []
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await read(running.stub.Generate(request(60, session_id="s")), events, 2, first.aclose)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        await stack.enter_async_context(serving(target, held_port))
        await running.health(SERVING)
        have = len(tokens_of(events))
        resumed = await running.generate(generation_pb2.GenerateRequest(session_id="s", resume_from=have))
        assert [*tokens_of(events), *tokens_of(resumed)] == continuation(b"hi", 60)


async def test_a_session_of_a_former_model_is_refused_not_mixed(redis_url, held_port):
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(AsyncExitStack())
        server = await first.enter_async_context(serving(FakeTarget(), held_port))
        running = await stack.enter_async_context(coordinating(redis_url, [address(server)], []))
        await running.generate(request(session_id="s"))
        await first.aclose()
        await running.health(NOT_SERVING)
        await stack.enter_async_context(serving(FakeTarget(model_fingerprint="m2"), held_port))
        await running.health(SERVING)
        error = await refusal(running, request(session_id="s"))
        assert (error.reason, error.field) == ("FINGERPRINT_MISMATCH", "session_id")


async def test_another_coordinator_resumes_what_one_that_drains_hands_over(redis_url):
    target = FakeTarget()
    async with (
        serving(target) as server,
        coordinating(redis_url, [address(server)], [], drain_seconds=0.2) as leaving,
        coordinating(redis_url, [address(server)], []) as staying,
    ):
        await leaving.health(SERVING)
        events = []

        async def hold_up_and_drain():
            target.gate = asyncio.Event()
            draining.append(asyncio.create_task(leaving.servicer.drain()))

        draining = []
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await read(leaving.stub.Generate(request(60, session_id="s")), events, 1, hold_up_and_drain)
        await draining[0]
        assert (caught.value.code(), from_rpc_error(caught.value).reason) == (grpc.StatusCode.UNAVAILABLE, "NOT_READY")
        assert (await refusal(leaving, request())).reason == "NOT_READY"
        target.gate = None
        have = len(tokens_of(events))
        resumed = await staying.generate(generation_pb2.GenerateRequest(session_id="s", resume_from=have))
        assert [*tokens_of(events), *tokens_of(resumed)] == continuation(b"hi", 60)


async def test_redis_away_is_unavailable(redis_url):
    async with serving(FakeTarget()) as server, coordinating(f"redis://{NOBODY}", [address(server)], []) as running:
        assert (await refusal(running, request())).code == "UNAVAILABLE"


async def test_the_spans_of_a_request_are_a_tree_without_text(redis_url):
    async with (
        serving(FakeTarget()) as target,
        serving(FakeDraft()) as draft,
        coordinating(redis_url, [address(target)], [address(draft)]) as running,
    ):
        await usable(running.fleet.drafts, 1)
        await running.health(SERVING)
        with recorded_spans() as exporter, capture_logs(processors=[telemetry._add_span]) as lines:
            await running.generate(request(8, session_id="s"))
            for server in (running.server, target, draft):
                await server._calls.idle.wait()  # the handlers have ended their spans
            spans = exporter.get_finished_spans()
    root = next(span for span in spans if span.name == "generate")
    mine = [span for span in spans if span.context.trace_id == root.context.trace_id]
    names = {span.context.span_id: span.name for span in mine}
    edges = {(names.get(span.parent.span_id) if span.parent else None, span.name) for span in mine}
    assert edges == {
        (None, "generate"),
        ("generate", "session.open"),
        ("generate", "round"),
        ("round", "Propose"),
        ("Propose", "Propose"),
        ("round", "Verify"),
        ("Verify", "Verify"),
        ("round", "session.commit"),
    }
    rounds = sorted((span for span in mine if span.name == "round"), key=lambda span: span.attributes["specdec.round"])
    assert [span.attributes["specdec.base_length"] for span in rounds] == sorted(
        {2, *(span.attributes["specdec.base_length"] for span in rounds)}
    )
    assert rounds[0].attributes["specdec.gamma"] == 4
    assert root.attributes["gen_ai.usage.output_tokens"] == 8
    assert root.attributes["gen_ai.response.finish_reasons"] == ("length",)
    text = bytes(continuation(b"hi", 8)).decode()
    assert not any(text in str(value) for span in mine for value in span.attributes.values())
    [line] = [each for each in lines if each["event"] == "answer ended"]
    assert int(line["trace_id"], 16) == root.context.trace_id
    told = {name: line[name] for name in ("log_level", "session", "tokens", "rounds", "finish_reason")}
    rounds_in_all = root.attributes["specdec.rounds"]
    expected = {"log_level": "info", "session": "s", "tokens": 8, "rounds": rounds_in_all, "finish_reason": "length"}
    assert told == expected
    assert text not in str(line)


async def test_a_deleted_session_is_freed_wherever_it_may_be(redis_url):
    targets, draft = [FakeTarget(), FakeTarget()], FakeDraft()
    async with (
        serving(targets[0]) as one,
        serving(targets[1]) as other,
        serving(draft) as small,
        coordinating(redis_url, [address(one), address(other)], [address(small)]) as running,
    ):
        await usable(running.fleet.targets, 2)
        await usable(running.fleet.drafts, 1)
        session_id = (await running.generate(request()))[0].session_id
        before = [service.calls["Release"] for service in [*targets, draft]]
        await running.stub.DeleteSession(generation_pb2.DeleteSessionRequest(session_id=session_id))
        assert all(service.calls["Release"] > calls for service, calls in zip([*targets, draft], before, strict=True))
