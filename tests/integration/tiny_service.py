"""A whole service process in a few lines: what tests of serving run as ``python -m tests.integration.tiny_service``.

Its Propose calls its own Release, so that one request makes a small trace; of a certain gamma it is never answered.
Its drain hook writes a log line.
"""

import asyncio
import sys

import grpc
import structlog
import uvloop
from grpc_health.v1 import health_pb2, health_pb2_grpc
from opentelemetry import trace
from prometheus_client import CollectorRegistry, Counter
from pydantic_settings import SettingsConfigDict

from specdec.serving import telemetry
from specdec.serving.calls import call
from specdec.serving.server import CHANNEL_OPTIONS, Server
from specdec.serving.settings import ServiceSettings
from specdec.v1 import common_pb2, draft_pb2, draft_pb2_grpc

NEVER_ANSWERED = 64

logger = structlog.stdlib.get_logger("tiny")


class TinySettings(ServiceSettings):
    model_config = SettingsConfigDict(env_prefix="TINY_")


class TinyService(draft_pb2_grpc.DraftServiceServicer):
    def __init__(self, registry):
        self.calls = Counter("tiny_calls", "Calls answered.", registry=registry)
        self.address = ""

    async def Propose(self, request, context):
        self.calls.inc()
        trace.get_current_span().set_attribute("specdec.gamma", request.gamma)
        logger.info("proposing")
        if request.gamma == NEVER_ANSWERED:
            await asyncio.Event().wait()
        async with grpc.aio.insecure_channel(self.address, options=CHANNEL_OPTIONS) as channel:
            stub = draft_pb2_grpc.DraftServiceStub(channel)
            path = "specdec.v1.DraftService/Release"
            await call(stub.Release, path, common_pb2.ReleaseRequest(), timeout=10, address=self.address)
        return draft_pb2.ProposeResponse()

    ProposeStream = Propose

    async def Release(self, request, context):
        return common_pb2.ReleaseResponse()

    async def GetModelInfo(self, request, context):
        raise KeyError("no model")


async def main():
    settings = TinySettings.load(sys.argv[1:])
    telemetry.configure("tiny", settings.log_level)
    registry = CollectorRegistry()
    server, service = Server(settings, registry), TinyService(registry)
    draft_pb2_grpc.add_DraftServiceServicer_to_server(service, server)
    server.end_on_signals()
    await server.start()
    service.address = f"127.0.0.1:{server.port}"
    await server.set_serving(True)

    async def drain():
        async with grpc.aio.insecure_channel(service.address) as channel:
            answer = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=10)
        logger.info("drained", health=health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status))

    await server.run_until_end(drain)


if __name__ == "__main__":
    uvloop.run(main())
