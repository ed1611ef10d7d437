"""Messages of the largest size: served or refused by name, one byte more is refused, and their memory comes back."""

import gc

import grpc
import psutil
import pytest
import pytest_asyncio

from coordinator.settings import CoordinatorSettings
from specdec.serving.server import CHANNEL_OPTIONS, MAX_MESSAGE_BYTES
from specdec.v1 import common_pb2, draft_pb2, generation_pb2, target_pb2
from tests.hostile_calls import METHODS
from tests.in_process import serving_draft, serving_target
from tests.integration.whole_path import whole_path

LARGEST = {
    "GenerationService": CoordinatorSettings.model_fields["max_request_bytes"].default,
    "DraftService": MAX_MESSAGE_BYTES,
    "TargetService": MAX_MESSAGE_BYTES,
}
UNKNOWN = b"\xc2\x3e"  # a field that no message has
ANY_SIZE = (("grpc.max_send_message_length", -1),)
Params, Chat = common_pb2.SamplingParams, generation_pb2.ChatMessage

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def channels(redis_server):
    async with (
        serving_target("synthetic:vocabulary=300,context=24") as target,
        serving_draft("synthetic:vocabulary=300,context=24,agreement=0.7") as draft,
        whole_path(redis_server.url, target, draft) as path,
        grpc.aio.insecure_channel(target.address, options=(*CHANNEL_OPTIONS, *ANY_SIZE)) as to_target,
        grpc.aio.insecure_channel(draft.address, options=(*CHANNEL_OPTIONS, *ANY_SIZE)) as to_draft,
        grpc.aio.insecure_channel(
            f"127.0.0.1:{path.coordinator.server.port}", options=(*CHANNEL_OPTIONS, *ANY_SIZE)
        ) as to_coordinator,
    ):
        yield {"GenerationService": to_coordinator, "DraftService": to_draft, "TargetService": to_target}


def of_size(start, size):
    """Return a message's bytes with a field that nobody knows behind it, ``size`` in all."""
    room = size - len(start) - len(UNKNOWN) - 4
    return (
        start
        + UNKNOWN
        + bytes([room & 127 | 128, room >> 7 & 127 | 128, room >> 14 & 127 | 128, room >> 21])
        + bytes(room)
    )


def service_of(name):
    return name.partition("/")[0]


def full(name, message):
    """Fill what is left of the largest size."""
    return of_size(message.SerializeToString(), LARGEST[service_of(name)])


@pytest.mark.parametrize("name", METHODS)
async def test_the_largest_message_is_read_and_a_larger_one_refused(channels, name):
    method, channel, largest = METHODS[name], channels[service_of(name)], LARGEST[service_of(name)]
    outcome = await method.outcome(channel, of_size(b"", largest))
    assert (outcome is None) == name.endswith("GetModelInfo")  # nothing but the unknown field stands in the others
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await method.send(channel, of_size(b"", largest + 1))
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


MANY = 14 * 2**20
LONG = 7 * 2**17  # the same share of what the coordinator takes
EMPTY = 3 * 2**17  # parts of two bytes
LARGE = {
    "GenerationService/Generate": [
        ("prompt", generation_pb2.GenerateRequest(prompt="a" * LONG)),
        ("token_ids", generation_pb2.GenerateRequest(token_ids=[1] * LONG)),
        ("messages", generation_pb2.GenerateRequest(messages=[Chat(role="u" * LONG)])),
        ("messages", generation_pb2.GenerateRequest(messages=[Chat()] * EMPTY)),
        ("session_id", generation_pb2.GenerateRequest(session_id="a" * LONG, prompt="a")),
        ("sampling_params.stop", generation_pb2.GenerateRequest(prompt="a", sampling_params=Params(stop=["a" * LONG]))),
        ("sampling_params.stop", generation_pb2.GenerateRequest(sampling_params=Params(stop=[""] * EMPTY))),
        (
            "sampling_params.stop_token_ids",
            generation_pb2.GenerateRequest(prompt="a", sampling_params=Params(stop_token_ids=[1] * LONG)),
        ),
    ],
    "GenerationService/GetSession": [("session_id", generation_pb2.GetSessionRequest(session_id="a" * LONG))],
    "GenerationService/DeleteSession": [("session_id", generation_pb2.DeleteSessionRequest(session_id="a" * LONG))],
    "DraftService/Propose": [("prefix.tokens", draft_pb2.ProposeRequest(prefix={"tokens": [1] * MANY}))],
    "DraftService/Release": [("session_id", common_pb2.ReleaseRequest(session_id="a" * MANY))],
    "TargetService/Verify": [
        ("prefix.tokens", target_pb2.VerifyRequest(prefix={"tokens": [1] * MANY})),
        ("proposal.draft_tokens", target_pb2.VerifyRequest(proposal={"draft_tokens": [1] * MANY})),
    ],
}


@pytest.mark.parametrize("name", LARGE)
async def test_what_is_too_large_is_named(channels, name):
    for field, message in LARGE[name]:
        payload = full(name, message)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await METHODS[name].send(channels[service_of(name)], payload)
        assert METHODS[name].refusal(caught.value, payload).field == field


@pytest.mark.long
async def test_the_memory_of_large_messages_comes_back(channels):
    async def send_all():
        for name, sent in LARGE.items():
            for _, message in sent:
                with pytest.raises(grpc.aio.AioRpcError):
                    await METHODS[name].send(channels[service_of(name)], full(name, message))
        gc.collect()
        return psutil.Process().memory_info().rss

    for _ in range(5):  # what the allocators keep is taken by then
        settled = await send_all()
    for _ in range(5):
        last = await send_all()
    sent = 5 * sum(len(sent) * LARGEST[service_of(name)] for name, sent in LARGE.items())
    assert last < settled + sent / 5
