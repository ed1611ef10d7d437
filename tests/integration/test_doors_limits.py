"""The doors of the public API: what one client may ask for, and that others do not notice."""

import asyncio
from hashlib import sha256

import grpc
import pytest
from grpc_health.v1 import health_pb2

from specdec.errors import ClientLimit
from specdec.serving.status import from_rpc_error
from specdec.v1 import common_pb2, generation_pb2
from tests.integration.coordinator_process import coordinating
from tests.integration.model_services import FakeDraft, FakeTarget, serving

ANN, BOB = (("authorization", "Bearer ann"),), (("authorization", "Bearer bob"),)
REQUEST = generation_pb2.GenerateRequest(prompt="hi", sampling_params=common_pb2.SamplingParams(max_new_tokens=6))


@pytest.fixture
async def target():
    return FakeTarget()


@pytest.fixture
async def limited(redis_url, target):
    """Start a coordinator with limits for one client; with ``tokens`` there are Ann and Bob."""
    async with serving(target) as target_server, serving(FakeDraft()) as draft_server:
        addresses = [f"127.0.0.1:{target_server.port}"], [f"127.0.0.1:{draft_server.port}"]
        yield lambda **settings: coordinating(redis_url, *addresses, **settings)


@pytest.fixture
def tokens_file(tmp_path):
    path = tmp_path / "tokens"
    path.write_text("".join(f"{name}:{sha256(name.encode()).hexdigest()}\n" for name in ("ann", "bob")))
    return str(path)


async def refused(running, metadata=()):
    """Return the error of a request that is refused."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await running.generate(REQUEST, metadata=metadata)
    error = from_rpc_error(caught.value)
    assert isinstance(error, ClientLimit)
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert error.retry_seconds > 0
    return error


async def test_a_principal_has_so_many_answers_at_once(limited, target, tokens_file):
    async with limited(client_answers=1, tokens_file=tokens_file) as running:
        await running.health(health_pb2.HealthCheckResponse.SERVING)
        target.gate = asyncio.Event()
        first = asyncio.create_task(running.generate(REQUEST, metadata=ANN))
        await target.reached("Verify", 1)
        await refused(running, ANN)
        assert (await running.stub.GetModelInfo(common_pb2.GetModelInfoRequest(), metadata=ANN)).model.name
        await running.health(health_pb2.HealthCheckResponse.SERVING)
        other = asyncio.create_task(running.generate(REQUEST, metadata=BOB))
        target.gate.set()
        assert (await first)[-1].finish_reason
        assert (await other)[-1].finish_reason
        assert (await running.generate(REQUEST, metadata=ANN))[-1].finish_reason


async def test_an_answer_that_is_left_counts_no_longer(limited, target):
    async with limited(client_answers=1) as running:
        await running.health(health_pb2.HealthCheckResponse.SERVING)
        target.gate = asyncio.Event()
        left = running.stub.Generate(REQUEST)
        await target.reached("Verify", 1)
        left.cancel()
        target.gate.set()
        await running.server._calls.idle.wait()
        assert (await running.generate(REQUEST))[-1].finish_reason


async def test_a_lost_stream_is_resumed_before_the_server_knows_of_the_loss(limited, target):
    async with limited(client_answers=1) as running:
        await running.health(health_pb2.HealthCheckResponse.SERVING)
        target.gate = asyncio.Event()
        lost = running.stub.Generate(
            generation_pb2.GenerateRequest(session_id="tea", prompt="hi", sampling_params={"max_new_tokens": 6})
        )
        await target.reached("Verify", 1)
        resuming = asyncio.create_task(
            running.generate(generation_pb2.GenerateRequest(session_id="tea", resume_from=0))
        )
        await target.reached("Verify", 2)
        target.gate.set()
        assert (await resuming)[-1].finish_reason
        lost.cancel()


async def test_an_address_has_so_many_calls_a_minute(limited):
    async with limited(client_calls_per_minute=2) as running:
        await running.health(health_pb2.HealthCheckResponse.SERVING)
        for _ in range(2):
            assert await running.generate(REQUEST)
        assert 0 < (await refused(running)).retry_seconds <= 30
        await running.health(health_pb2.HealthCheckResponse.SERVING)


async def test_tokens_that_were_answered_are_counted(limited, tokens_file):
    async with limited(client_tokens_per_minute=1, tokens_file=tokens_file) as running:
        await running.health(health_pb2.HealthCheckResponse.SERVING)
        assert await running.generate(REQUEST, metadata=ANN)
        assert 0 < (await refused(running, ANN)).retry_seconds <= 360
        assert await running.generate(REQUEST, metadata=BOB)
