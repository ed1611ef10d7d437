"""A model server whose engine has broken ends, so that whoever started it can start it anew."""

import asyncio

import grpc
import pytest
from prometheus_client import CollectorRegistry

from specdec.model.batching import Batching
from specdec.serving import telemetry
from specdec.serving.model_server import run_model_server
from specdec.serving.server import Server
from specdec.v1 import common_pb2, target_pb2_grpc
from target_service.servicer import TargetServicer
from target_service.settings import TargetSettings
from target_service.verifying import decide
from tests.integration.serving_world import until


async def test_the_process_of_a_broken_engine_ends_with_one(monkeypatch):
    # Tracing, logs and signals are of the process that runs the tests.
    for owner, name in ((telemetry, "configure"), (telemetry, "shutdown"), (Server, "end_on_signals")):
        monkeypatch.setattr(owner, name, lambda *_: None)
    servicers = []

    def add(servicer, server):
        servicers.append((servicer, server))
        target_pb2_grpc.add_TargetServiceServicer_to_server(servicer, server)

    settings, registry = TargetSettings(model="synthetic:seed=1", port=0, drain_seconds=3600), CollectorRegistry()
    servicer = TargetServicer(settings, registry)

    async def run():
        with pytest.raises(SystemExit) as ended:
            await run_model_server("target", settings, servicer, registry, add, decide)
        return ended.value.code

    running = asyncio.create_task(run())
    await until(lambda: servicers and servicers[0][1]._serving)
    monkeypatch.setattr(Batching, "turn", lambda _: {}["a fault of its own"])
    async with grpc.aio.insecure_channel(f"127.0.0.1:{servicers[0][1].port}") as channel:
        fence = common_pb2.Fence(counter=1, owner="a" * 32)
        request = common_pb2.ReleaseRequest(session_id="s", fence=fence)
        with pytest.raises(grpc.aio.AioRpcError):
            await target_pb2_grpc.TargetServiceStub(channel).Release(request, timeout=30)
    assert await running == 1
