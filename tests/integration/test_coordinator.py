"""The coordinator over real gRPC and Redis, with draft and target services that hold no model."""

import asyncio

import grpc
import pytest
from grpc_health.v1 import health_pb2

from specdec.errors import CacheFull, InvalidProposal
from specdec.serving.status import from_rpc_error
from specdec.v1 import common_pb2, generation_pb2
from tests.integration.coordinator_process import coordinating
from tests.integration.model_services import EOS, FakeDraft, FakeTarget, continuation, serving

SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
Params, Request = common_pb2.SamplingParams, generation_pb2.GenerateRequest


@pytest.fixture
async def target():
    return FakeTarget()


@pytest.fixture
async def draft():
    return FakeDraft()


@pytest.fixture
async def coordinator(redis_url, target, draft):
    async with (
        serving(target) as target_server,
        serving(draft) as draft_server,
        coordinating(redis_url, [f"127.0.0.1:{target_server.port}"], [f"127.0.0.1:{draft_server.port}"]) as running,
    ):
        await draft_joined(running)
        yield running


async def draft_joined(running):
    await asyncio.wait_for(running.fleet.drafts.wait_for(running.fleet.drafts.usable, 30), 30)
    await running.health(SERVING)


def text_of(events):
    return "".join(event.text for event in events)


def tokens_of(events):
    return [token for event in events for token in event.token_ids]


def reason_of(error):
    known = from_rpc_error(error)
    return known.reason, known.field


async def test_a_prompt_is_answered_with_text_beside_ids(coordinator, target):
    target.eos_at = 2 + 20
    events = await coordinator.generate(Request(prompt="hi", sampling_params=Params(logprobs=0)))
    expected = continuation(b"hi", 20)
    assert tokens_of(events) == [*expected, EOS]
    assert text_of(events) == bytes(expected).decode()
    assert [event.index for event in events] == [len(tokens_of(events[:place])) for place in range(len(events))]
    for event in events:
        assert len(event.sources) == len(event.logprobs) == len(event.token_texts) == len(event.token_ids)
        assert "".join(event.token_texts) == event.text
        assert event.session_id == events[0].session_id
    last = events[-1]
    assert (last.finish_reason, last.session_length) == (generation_pb2.FINISH_REASON_STOP, 2 + 21)
    assert all(not event.finish_reason and not event.HasField("usage") for event in events[:-1])
    assert last.usage.completion_tokens == 21
    assert 0 < last.usage.spec_accepted_tokens == sum(last.usage.accepted_per_position)
    assert [event.round.number for event in events] == list(range(len(events)))


async def test_a_round_sends_only_what_is_new(coordinator, target, draft):
    await coordinator.generate(Request(prompt="hi" * 20, sampling_params=Params(max_new_tokens=20)))
    assert target.starts[0] == draft.starts[0] == 0
    assert target.starts[1:] == sorted(target.starts[1:])
    assert target.starts[1] >= 40
    assert len(target.starts) == target.calls["Verify"]


async def test_a_replica_that_lost_the_prefix_is_asked_again_from_0(coordinator, target, draft):
    target.gate = asyncio.Event()
    generating = asyncio.create_task(
        coordinator.generate(Request(prompt="hi", sampling_params=Params(max_new_tokens=30)))
    )
    await target.reached("Verify", 1)
    target.gate.set()
    await target.reached("Verify", 3)
    target.held.clear()
    draft.held.clear()
    assert tokens_of(await generating) == continuation(b"hi", 30)


async def test_gamma_0_never_asks_the_draft(coordinator, draft):
    speculation = generation_pb2.SpeculationParams(gamma=0)
    events = await coordinator.generate(
        Request(prompt="hi", speculation=speculation, sampling_params=Params(max_new_tokens=5))
    )
    assert tokens_of(events) == continuation(b"hi", 5)
    assert draft.calls["Propose"] == 0
    assert {source for event in events for source in event.sources} == {generation_pb2.TOKEN_SOURCE_TARGET_ONLY}
    assert not any(event.round.fallback for event in events)


async def test_a_full_draft_is_a_visible_fallback(coordinator, draft):
    draft.errors = [CacheFull("no room")] * 2
    events = await coordinator.generate(Request(prompt="hi", sampling_params=Params(max_new_tokens=12)))
    assert tokens_of(events) == continuation(b"hi", 12)
    fallbacks = [event.round.fallback for event in events]
    assert fallbacks[:3] == [generation_pb2.FALLBACK_REASON_DRAFT_OVERLOADED] * 2 + [0]
    assert coordinator.metric("fallback_rounds_total", reason="draft_overloaded") == 2


async def test_a_refused_proposal_costs_a_round_and_nothing_else(coordinator, target):
    target.errors = [InvalidProposal("not drawn so")]
    events = await coordinator.generate(Request(prompt="hi", sampling_params=Params(max_new_tokens=12)))
    assert tokens_of(events) == continuation(b"hi", 12)
    assert events[0].round.fallback == generation_pb2.FALLBACK_REASON_INVALID_PROPOSAL


async def test_a_session_is_continued_and_its_seed_stays(coordinator):
    first = await coordinator.generate(
        Request(session_id="s", prompt="hi", sampling_params=Params(max_new_tokens=5, seed=9), expected_length=0)
    )
    more = await coordinator.generate(
        Request(session_id="s", prompt="yo", sampling_params=Params(max_new_tokens=4), expected_length=7)
    )
    whole = [*b"hi", *tokens_of(first), *b"yo"]
    assert tokens_of(more) == continuation(whole, 4)
    assert more[-1].usage.prompt_tokens == 9
    session = await coordinator.stub.GetSession(generation_pb2.GetSessionRequest(session_id="s"))
    assert list(session.token_ids) == [*whole, *tokens_of(more)]
    assert (session.state, session.prompt_length) == (generation_pb2.SESSION_STATE_FINISHED, 9)
    assert (session.text, session.sampling_params.seed) == (text_of(more), 9)
    assert session.finish_reason == generation_pb2.FINISH_REASON_LENGTH


async def test_a_repeated_request_is_not_appended_twice(coordinator):
    request = Request(session_id="s", prompt="hi", sampling_params=Params(max_new_tokens=5), expected_length=0)
    await coordinator.generate(request)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await coordinator.generate(request)
    assert caught.value.code() is grpc.StatusCode.ABORTED
    assert reason_of(caught.value) == ("LENGTH_MISMATCH", "expected_length")


@pytest.mark.parametrize("have", range(0, 13, 3))
async def test_a_lost_stream_is_resumed_without_repeated_or_missing_text(coordinator, have):
    request = Request(session_id="s", prompt="hi", sampling_params=Params(max_new_tokens=40, logprobs=1))
    events, received = [], 0
    stream = coordinator.stub.Generate(request)
    async for event in stream:
        events.append(event)
        received += len(event.token_ids)
        if received > have:
            break
    stream.cancel()
    resumed = await coordinator.generate(Request(session_id="s", resume_from=received))
    assert [*tokens_of(events), *tokens_of(resumed)] == continuation(b"hi", 40)
    assert text_of(events) + text_of(resumed) == bytes(continuation(b"hi", 40)).decode()
    assert resumed[-1].finish_reason == generation_pb2.FINISH_REASON_LENGTH
    assert resumed[-1].usage.completion_tokens == 40


async def test_a_finished_answer_is_repeated_from_anywhere(coordinator, target):
    params = Params(max_new_tokens=10, stop=[chr(continuation(b"hi", 10)[-1]) + "never"], logprobs=0)
    events = await coordinator.generate(Request(session_id="s", prompt="hi", sampling_params=params))
    calls = target.calls["Verify"]
    for have in range(11):
        repeated = await coordinator.generate(Request(session_id="s", resume_from=have))
        assert len(repeated) == 1
        assert list(repeated[0].token_ids) == continuation(b"hi", 10)[have:]
        assert (repeated[0].finish_reason, repeated[0].usage) == (events[-1].finish_reason, events[-1].usage)
        assert [each.HasField("logprob") for each in repeated[0].logprobs] == [False] * (10 - have)
        assert not repeated[0].HasField("round")
    assert text_of(await coordinator.generate(Request(session_id="s", resume_from=0))) == text_of(events)
    assert target.calls["Verify"] == calls


async def test_more_tokens_than_were_committed_are_data_loss(coordinator):
    await coordinator.generate(Request(session_id="s", prompt="hi", sampling_params=Params(max_new_tokens=3)))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await coordinator.generate(Request(session_id="s", resume_from=4))
    assert caught.value.code() is grpc.StatusCode.DATA_LOSS
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await coordinator.generate(Request(session_id="unknown", resume_from=0))
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (Request(), "prompt"),
        (Request(prompt="a" * 200), "prompt"),
        (Request(token_ids=[512]), "token_ids"),
        (Request(prompt="a", speculation=generation_pb2.SpeculationParams(gamma=17)), "speculation.gamma"),
        (Request(prompt="a", sampling_params=Params(top_p=2)), "sampling_params.top_p"),
        (Request(messages=[generation_pb2.ChatMessage(role="user", content="a")]), "messages"),
    ],
)
async def test_what_cannot_be_served_names_its_field(coordinator, request_, field):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await coordinator.generate(request_)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert reason_of(caught.value) == ("INVALID_PARAMETER", field)


async def test_a_client_that_leaves_frees_the_session_and_stops_the_work(coordinator, target):
    target.gate = asyncio.Event()
    stream = coordinator.stub.Generate(Request(session_id="s", prompt="hi"))
    await target.reached("Verify", 1)
    stream.cancel()
    await target.reached("Release", 1)
    assert (await coordinator.left("s")).state == generation_pb2.SESSION_STATE_INTERRUPTED
    assert target.released == [("s", len("hi"))]


async def test_a_running_session_is_not_run_twice_but_resumed(coordinator, target):
    target.gate = asyncio.Event()
    first = asyncio.create_task(
        coordinator.generate(Request(session_id="s", prompt="hi", sampling_params=Params(max_new_tokens=8)))
    )
    await target.reached("Verify", 1)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await coordinator.generate(Request(session_id="s", prompt="yo"))
    assert reason_of(caught.value)[0] == "SESSION_BUSY"
    resumed = asyncio.create_task(coordinator.generate(Request(session_id="s", resume_from=0)))
    await target.reached("Verify", 2)
    target.gate.set()
    assert tokens_of(await resumed) == continuation(b"hi", 8)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await first
    assert reason_of(caught.value)[0] == "STALE_FENCE"


async def test_a_deleted_session_is_freed_everywhere(coordinator, target, draft):
    await coordinator.generate(Request(session_id="s", prompt="hi", sampling_params=Params(max_new_tokens=3)))
    await coordinator.stub.DeleteSession(generation_pb2.DeleteSessionRequest(session_id="s"))
    assert ("s", 0) in target.released
    assert ("s", 0) in draft.released
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await coordinator.stub.GetSession(generation_pb2.GetSessionRequest(session_id="s"))
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


async def test_the_models_are_named(coordinator):
    info = await coordinator.stub.GetModelInfo(common_pb2.GetModelInfoRequest())
    assert info.model.model_fingerprint == "m1"
    assert info.HasField("draft")


async def test_metrics_count_what_was_emitted(coordinator):
    events = await coordinator.generate(Request(prompt="hi", sampling_params=Params(max_new_tokens=20)))
    usage = events[-1].usage
    assert coordinator.metric("generation_tokens_total") == 20
    assert coordinator.metric("prompt_tokens_total") == 2
    assert coordinator.metric("rounds_total") == usage.rounds
    assert coordinator.metric("spec_decode_num_drafts_total") == usage.spec_rounds
    assert coordinator.metric("spec_decode_num_draft_tokens_total") == usage.spec_draft_tokens
    assert coordinator.metric("spec_decode_num_accepted_tokens_total") == usage.spec_accepted_tokens
    first = coordinator.metric("spec_decode_num_accepted_tokens_per_pos_total", position="0")
    assert first == usage.accepted_per_position[0]
    assert coordinator.metric("request_success_total", finished_reason="length") == 1
    assert coordinator.metric("time_to_first_token_seconds_count") == 1
    assert coordinator.metric("time_per_output_token_seconds_count") == 1
    assert coordinator.metric("e2e_request_latency_seconds_count") == 1
    assert coordinator.metric("num_requests_running") == 0
