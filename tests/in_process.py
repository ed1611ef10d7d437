"""The three services in this process, over loopback and a real Redis: for tests that look or reach inside."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
from prometheus_client import CollectorRegistry

from coordinator.__main__ import make_fleet
from coordinator.metrics import Metrics
from coordinator.servicer import GenerationServicer
from coordinator.session_store import SessionStore
from coordinator.settings import CoordinatorSettings
from draft_service.drafting import draw
from draft_service.servicer import DraftServicer
from draft_service.settings import DraftSettings
from specdec.model.loading import load_model
from specdec.serving.server import Server
from specdec.v1.draft_pb2_grpc import add_DraftServiceServicer_to_server
from specdec.v1.generation_pb2_grpc import GenerationServiceStub, add_GenerationServiceServicer_to_server
from specdec.v1.target_pb2_grpc import add_TargetServiceServicer_to_server
from target_service.servicer import TargetServicer
from target_service.settings import TargetSettings
from target_service.verifying import decide


@asynccontextmanager
async def running_services(redis_url: str, target: str, draft: str) -> AsyncIterator[GenerationServiceStub]:
    """Serve a pair of models; the stub is the coordinator's, which has both of them."""
    target_settings, draft_settings = TargetSettings(model=target, port=0), DraftSettings(model=draft, port=0)
    async with (
        _model_server(target_settings, TargetServicer, add_TargetServiceServicer_to_server, decide) as target_port,
        _model_server(draft_settings, DraftServicer, add_DraftServiceServicer_to_server, draw) as draft_port,
        _coordinator(redis_url, target_port, draft_port) as port,
        grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        yield GenerationServiceStub(channel)


@asynccontextmanager
async def _model_server(settings, servicer_class, add, advance) -> AsyncIterator[int]:
    registry = CollectorRegistry()
    servicer = servicer_class(settings, registry)
    server = Server(settings, registry)
    add(servicer, server)
    await server.start()
    servicer.start(load_model(settings.model), advance)
    await server.set_serving(True)
    yield server.port
    await server.stop(0)
    await servicer.close()


@asynccontextmanager
async def _coordinator(redis_url: str, target_port: int, draft_port: int) -> AsyncIterator[int]:
    settings = CoordinatorSettings(
        port=0,
        redis_url=redis_url,
        target_addresses=(f"127.0.0.1:{target_port}",),
        draft_addresses=(f"127.0.0.1:{draft_port}",),
    )
    registry = CollectorRegistry()
    store = SessionStore(settings.redis_url, ttl_seconds=settings.session_ttl, lease_seconds=settings.lease_seconds)
    fleet = make_fleet(settings)
    servicer = GenerationServicer(settings, fleet, store, Metrics(registry))
    server = Server(settings, registry)
    add_GenerationServiceServicer_to_server(servicer, server)
    await server.start()
    fleet.start(server.set_serving)
    await fleet.drafts.wait_for(fleet.drafts.usable, 30)
    await fleet.targets.wait_for(fleet.targets.usable, 30)
    yield server.port
    await servicer.drain()
    await server.stop(0)
    await fleet.close()
    await store.close()
