"""The coordinator in this process, wired as its main does it, with a client beside it."""

from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from grpc_health.v1 import health_pb2, health_pb2_grpc
from prometheus_client import CollectorRegistry

from coordinator.__main__ import make_fleet, make_server
from coordinator.metrics import Metrics
from coordinator.servicer import GenerationServicer
from coordinator.session_store import SessionStore
from coordinator.settings import CoordinatorSettings
from specdec.serving.server import Server
from specdec.v1 import generation_pb2, generation_pb2_grpc
from tests.integration.model_services import channel_to

PATIENCE_SECONDS = 90  # for what must come about: a machine may be busy


@dataclass
class Coordinator:
    """A running coordinator."""

    stub: Any
    servicer: GenerationServicer
    server: Server
    fleet: Any
    registry: CollectorRegistry
    channel: Any

    async def generate(self, request, **options):
        return [response async for response in self.stub.Generate(request, **options)]

    async def health(self, wanted):
        """Wait until health says so."""
        stub = health_pb2_grpc.HealthStub(self.channel)
        async for answer in stub.Watch(health_pb2.HealthCheckRequest(), timeout=PATIENCE_SECONDS):
            if answer.status == wanted:
                return

    async def left(self, session_id):
        """Return a session once nobody answers it: the client may be told before Redis knows that the claim is gone."""
        asked = generation_pb2.GetSessionRequest(session_id=session_id)
        while (session := await self.stub.GetSession(asked)).state == generation_pb2.SESSION_STATE_RUNNING:
            pass
        return session

    def metric(self, name, **labels):
        return self.registry.get_sample_value(f"specdec_{name}", labels)


@asynccontextmanager
async def coordinating(redis_url, targets, drafts, **settings):
    """Run a coordinator; ``targets`` and ``drafts`` are addresses."""
    settings = {"peer_wait_seconds": PATIENCE_SECONDS} | settings
    settings = CoordinatorSettings(
        port=0,
        redis_url=redis_url,
        target_addresses=",".join(targets),
        draft_addresses=",".join(drafts),
        **settings,
    )
    registry = CollectorRegistry()
    store = SessionStore(redis_url, ttl_seconds=600, lease_seconds=settings.lease_seconds)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(store.close)
        fleet = make_fleet(settings)
        stack.push_async_callback(fleet.close)
        servicer = GenerationServicer(settings, fleet, store, Metrics(registry))
        server = make_server(settings, registry)
        generation_pb2_grpc.add_GenerationServiceServicer_to_server(servicer, server)
        await server.start()
        stack.push_async_callback(server.stop, 0)
        fleet.start(server.set_serving)
        channel = channel_to(server)
        stack.push_async_callback(channel.close)
        stub = generation_pb2_grpc.GenerationServiceStub(channel)
        yield Coordinator(stub, servicer, server, fleet, registry, channel)
