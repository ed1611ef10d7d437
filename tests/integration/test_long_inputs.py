"""An input that takes long to encode costs nobody else anything, and its own client no more than its deadline."""

import threading

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from coordinator.encoding import LARGE_BYTES
from specdec.serving.status import from_rpc_error
from specdec.v1 import common_pb2, generation_pb2
from tests.integration.coordinator_process import coordinating
from tests.integration.model_services import FakeDraft, FakeTarget, serving
from tests.integration.serving_world import deadlines

LONG = "a" * LARGE_BYTES


async def test_health_other_answers_and_a_deadline_do_not_wait_for_an_input_that_is_being_encoded(
    redis_server, monkeypatch
):
    target, gate = FakeTarget(context_length=2**20), threading.Event()
    async with (
        serving(target) as large,
        serving(FakeDraft()) as small,
        coordinating(redis_server.url, [f"127.0.0.1:{large.port}"], [f"127.0.0.1:{small.port}"]) as running,
    ):
        served = await running.fleet.served(30)
        encode, held = served.tokenizer.encode, threading.Event()

        def encode_when_told(text, *, begin):
            if len(text) >= LARGE_BYTES:
                held.set()
                assert gate.wait(60)
            return encode(text, begin=begin)

        monkeypatch.setattr(served.tokenizer, "encode", encode_when_told)
        try:
            for timeout in deadlines():
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await running.generate(generation_pb2.GenerateRequest(prompt=LONG), timeout=timeout)
                assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
                if held.is_set() and from_rpc_error(caught.value).reason == "DEADLINE_EXCEEDED":
                    break  # told so by the coordinator, while the encoding goes on
            assert held.is_set()
            health = await health_pb2_grpc.HealthStub(running.channel).Check(health_pb2.HealthCheckRequest())
            assert health.status == health_pb2.HealthCheckResponse.SERVING
            three = common_pb2.SamplingParams(max_new_tokens=3)
            answer = await running.generate(generation_pb2.GenerateRequest(prompt="hi", sampling_params=three))
            assert answer[-1].finish_reason == generation_pb2.FINISH_REASON_LENGTH
        finally:
            gate.set()  # the loop waits for its threads
