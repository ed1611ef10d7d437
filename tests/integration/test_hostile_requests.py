"""Whoever sends anything to any method is told what is wrong with it, and costs nobody else anything."""

import asyncio
from contextlib import asynccontextmanager

import grpc
import psutil
import pytest
import pytest_asyncio
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from coordinator.session import SessionState
from specdec.errors import SessionNotFound
from specdec.parameters import SamplingParams
from specdec.prefix import PrefixDigest
from specdec.serving.server import CHANNEL_OPTIONS, MAX_MESSAGE_BYTES
from specdec.v1 import common_pb2, draft_pb2, generation_pb2, target_pb2
from specdec.wire import params_to_message
from tests.engines import state_of
from tests.hostile_calls import METHODS, Method
from tests.hostile_messages import SECRET, payloads
from tests.in_process import serving_draft, serving_target
from tests.integration.whole_path import BLOCK, COUPLED, TOKEN, whole_path

AT_ONCE, TIMES = 20, 42  # for each of the twelve methods: 10,080 in all
PATIENCE_SECONDS = 60
TARGET, DRAFT = "synthetic:vocabulary=300,context=24", "synthetic:vocabulary=300,context=20,agreement=0.7"
GOOD = {"prompt": "tea", "sampling_params": {"temperature": 0.0, "max_new_tokens": 8}}

pytestmark = pytest.mark.asyncio(loop_scope="module")

params = params_to_message(SamplingParams(temperature=0.7, seed=3, logprobs=2, logit_bias={4: 1.0}, stop=("x",)))
fence = common_pb2.Fence(counter=2, owner="ab" * 16)
prefix = common_pb2.CommittedPrefix(
    session_id="a", fence=fence, prefix_digest=PrefixDigest().digest(), tokens=[1, 2, 3], prompt_length=2
)
certain = [common_pb2.SparseDistribution(token_ids=[token], probabilities=[1.0]) for token in (5, 6)]
asked = generation_pb2.SpeculationParams(gamma=2, verification=COUPLED)
short = common_pb2.SamplingParams(max_new_tokens=3, seed=1)

GOOD_REQUESTS = {
    "Generate": [
        generation_pb2.GenerateRequest(prompt=SECRET, sampling_params=params, speculation=asked),
        generation_pb2.GenerateRequest(session_id="a", token_ids=[7, 8], sampling_params=short, speculation=asked),
        generation_pb2.GenerateRequest(session_id="b", prompt=SECRET, sampling_params=short, expected_length=0),
        generation_pb2.GenerateRequest(messages=[generation_pb2.ChatMessage(role="user", content=SECRET)]),
        generation_pb2.GenerateRequest(session_id="a", resume_from=0),
    ],
    "GetSession": [generation_pb2.GetSessionRequest(session_id=name) for name in ("a", "unknown")],
    "DeleteSession": [generation_pb2.DeleteSessionRequest(session_id=name) for name in ("a", "unknown")],
    "GetModelInfo": [common_pb2.GetModelInfoRequest()],
    "Release": [common_pb2.ReleaseRequest(session_id="a", fence=fence, keep_length=2)],
    "Propose": [
        draft_pb2.ProposeRequest(
            prefix=prefix, sampling_params=params, gamma=3, verification=way, min_survival=[0.5, 0.1]
        )
        for way in (TOKEN, COUPLED)
    ],
    "Verify": [
        target_pb2.VerifyRequest(
            prefix=prefix,
            sampling_params=params,
            verification=way,
            proposal={"draft_tokens": [5, 6], "draft_distributions": [] if way == COUPLED else certain},
        )
        for way in (TOKEN, BLOCK, COUPLED)
    ],
}


class Payloads(list):
    def __repr__(self):
        return f"{len(self)} payloads"  # to write them all down takes minutes


@st.composite
def payload_lists(draw, name):
    good = GOOD_REQUESTS[name.rpartition("/")[2].removesuffix("Stream")]
    return Payloads(draw(st.lists(payloads(good), min_size=AT_ONCE, max_size=AT_ONCE)))


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def path(redis_server):
    # Nobody but the coordinator gives its sessions up, so what others leave in the caches makes room at once.
    async with (
        serving_target(TARGET, session_idle_seconds=0) as target,
        serving_draft(DRAFT, session_idle_seconds=0) as draft,
        whole_path(
            redis_server.url, target, draft, peer_wait_seconds=PATIENCE_SECONDS, max_request_bytes=MAX_MESSAGE_BYTES
        ) as path,
    ):
        await path.answers([GOOD] * 2 * AT_ONCE)  # so that its connections to Redis are there
        yield path


@pytest_asyncio.fixture(loop_scope="module")
async def undisturbed(path):
    """Answer a good request before and after, and find nothing left of what came between."""
    before = await path.answer(**GOOD)
    level = await levels(path)
    yield
    after = await path.answer(**GOOD)
    assert (after.tokens, after.text) == (before.tokens, before.text)
    level["open files"] += AT_ONCE // 2  # of more calls than that
    deadline = asyncio.get_running_loop().time() + PATIENCE_SECONDS
    while above := {name: held for name, held in (await levels(path)).items() if held > level[name]}:
        assert asyncio.get_running_loop().time() < deadline, f"{above} held, {level} before"
        await asyncio.sleep(0.01)


def open_files(path):
    """Count them without the connections to Redis, which are kept."""
    return psutil.Process().num_fds() - len(
        path.coordinator.servicer._store._redis.connection_pool._available_connections
    )


async def levels(path):
    """Return what a call takes for as long as it runs; some of it is let go a moment after the answer."""
    servers = path.coordinator.server, path.target.server, path.draft.server
    await asyncio.gather(*(server._calls.idle.wait() for server in servers))
    await path.caches_released()
    engines = path.target.servicer.engine, path.draft.servicer.engine
    caches = [engine._batching.caches for engine in engines]
    clients = path.coordinator.servicer._doors._limits._clients
    return {
        "tasks": len(asyncio.all_tasks()),
        "open files": open_files(path),
        "calls in engines": sum([(await state_of(each)).running + each.queue_length for each in engines]),
        "open calls": sum(len(each._open) for each in engines),
        "running caches": sum(session.running for each in caches for session in each),
        "room of no cache": sum(abs(each.room - sum(session.room for session in each)) for each in caches),
        "running sessions": await running_sessions(path.coordinator.servicer._store._redis),
        "answers counted": sum(len(each.running) for each in clients.values()),
        "answers": len(path.coordinator.servicer._generating),
    }


async def running_sessions(redis):
    """Count the sessions that are stored as being answered."""
    async with redis.pipeline(transaction=False) as asked:
        async for key in redis.scan_iter("specdec:*:meta", 1000):
            asked.hget(key, "state")
        return (await asked.execute()).count(SessionState.RUNNING.name.encode())


@asynccontextmanager
async def channel_to(path, name):
    server = {"GenerationService": path.coordinator, "DraftService": path.draft, "TargetService": path.target}
    port = server[name.partition("/")[0]].server.port
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=CHANNEL_OPTIONS) as channel:
        yield channel


async def bombard(path, name, payloads):
    """Send all of them at once, so that an engine has them in one batch; fail for the first wrong answer."""
    async with channel_to(path, name) as channel:
        sent = (METHODS[name].outcome(channel, payload) for payload in payloads)
        outcomes = await asyncio.gather(*sent, return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("undisturbed")
@pytest.mark.parametrize("name", METHODS)
@settings(
    max_examples=TIMES,
    phases=[Phase.generate],  # what fails is said of the one payload; to look for a smaller one takes minutes
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
async def test_what_is_sent_is_served_or_refused_by_name(path, name, data):
    await bombard(path, name, data.draw(payload_lists(name)))


NO_MESSAGES = b"\xff", b"\x0a\x7fshort", b"\xc3\x3e" * 200
NO_MESSAGE = "not a message of the type that this method takes"


@pytest.mark.parametrize("name", METHODS)
async def test_bytes_that_are_no_message_are_refused_as_such(path, name):
    async with channel_to(path, name) as channel:
        for payload in NO_MESSAGES:
            with pytest.raises(grpc.aio.AioRpcError, match=NO_MESSAGE) as caught:
                await METHODS[name].send(channel, payload)
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_session_is_called_in_errors_as_its_caller_calls_it(path):
    method = METHODS["GenerationService/GetSession"]
    async with channel_to(path, "GenerationService/GetSession") as channel:
        for name in ("redis", "None", "asyncio", "specdec:x", "e"):
            sent = generation_pb2.GetSessionRequest(session_id=name).SerializeToString()
            assert await method.outcome(channel, sent) is SessionNotFound


PLUMBING = {
    "Health/Check": Method(
        "/grpc.health.v1.Health/Check", health_pb2.HealthCheckRequest, health_pb2.HealthCheckResponse, ""
    ),
    "Health/Watch": Method(
        "/grpc.health.v1.Health/Watch", health_pb2.HealthCheckRequest, health_pb2.HealthCheckResponse, "out"
    ),
    "ServerReflection": Method(
        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
        reflection_pb2.ServerReflectionRequest,
        reflection_pb2.ServerReflectionResponse,
        "both",
    ),
}


@pytest.mark.parametrize("name", PLUMBING)
async def test_health_and_reflection_refuse_them_too(path, name):
    for payload in NO_MESSAGES:
        with pytest.raises(grpc.aio.AioRpcError, match=NO_MESSAGE) as caught:
            await PLUMBING[name].send(path.coordinator.channel, payload)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
