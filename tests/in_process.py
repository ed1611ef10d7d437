"""The three services in this process, over loopback and a real Redis: for tests that look or reach inside."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import grpc
from prometheus_client import CollectorRegistry

from coordinator.__main__ import make_fleet, make_server
from coordinator.metrics import Metrics
from coordinator.servicer import GenerationServicer
from coordinator.session_store import SessionStore
from coordinator.settings import CoordinatorSettings
from draft_service.drafting import draw
from draft_service.servicer import DraftServicer
from draft_service.settings import DraftSettings
from specdec.model.language_model import LanguageModel
from specdec.serving.model_server import ModelServicer
from specdec.serving.server import Server
from specdec.v1.draft_pb2_grpc import add_DraftServiceServicer_to_server
from specdec.v1.generation_pb2_grpc import GenerationServiceStub, add_GenerationServiceServicer_to_server
from specdec.v1.target_pb2_grpc import add_TargetServiceServicer_to_server
from target_service.servicer import TargetServicer
from target_service.settings import TargetSettings
from target_service.verifying import decide


@asynccontextmanager
async def running_services(
    redis_url: str, target: str, draft: str, **draft_settings
) -> AsyncIterator[GenerationServiceStub]:
    """Serve a pair of models; the stub is the coordinator's, which has both of them."""
    async with (
        serving_target(target) as target_server,
        serving_draft(draft, **draft_settings) as draft_server,
        _coordinator(redis_url, target_server.address, draft_server.address) as port,
        grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        yield GenerationServiceStub(channel)


@dataclass(frozen=True, slots=True)
class ModelServer:
    """A draft or a target that serves."""

    server: Server
    servicer: ModelServicer

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server.port}"

    def cached(self, session_id: str) -> list[int]:
        """Return the tokens that the cache of a resting session holds."""
        return self.servicer.engine._batching.caches.get(session_id).tokens


@asynccontextmanager
async def serving_target(
    model: str, *, loaded: LanguageModel | None = None, port: int = 0, **settings
) -> AsyncIterator[ModelServer]:
    """Serve a target; ``loaded`` is served in place of what the name loads."""
    settings = TargetSettings(model=model, port=port, **settings)
    registry = CollectorRegistry()
    servicer = TargetServicer(settings, registry)
    server = Server(settings, registry)
    add_TargetServiceServicer_to_server(servicer, server)
    async with _serving(server, servicer, loaded, decide) as running:
        yield running


@asynccontextmanager
async def serving_draft(
    model: str,
    *,
    servicer_class: type[DraftServicer] = DraftServicer,
    loaded: LanguageModel | None = None,
    port: int = 0,
    **settings,
) -> AsyncIterator[ModelServer]:
    """Serve a draft; ``loaded`` is served in place of what the name loads."""
    settings = DraftSettings(model=model, port=port, **settings)
    registry = CollectorRegistry()
    servicer = servicer_class(settings, registry)
    server = Server(settings, registry)
    add_DraftServiceServicer_to_server(servicer, server)
    async with _serving(server, servicer, loaded, draw) as running:
        yield running


@asynccontextmanager
async def _serving(server, servicer, loaded, advance) -> AsyncIterator[ModelServer]:
    await server.start()
    servicer.start(loaded or servicer.load(), advance)
    await server.set_serving(True)
    try:
        yield ModelServer(server, servicer)
    finally:
        await server.stop(0)
        await servicer.close()


@asynccontextmanager
async def _coordinator(redis_url: str, target_address: str, draft_address: str) -> AsyncIterator[int]:
    settings = CoordinatorSettings(
        port=0,
        redis_url=redis_url,
        target_addresses=(target_address,),
        draft_addresses=(draft_address,),
    )
    registry = CollectorRegistry()
    store = SessionStore(settings.redis_url, ttl_seconds=settings.session_ttl, lease_seconds=settings.lease_seconds)
    fleet = make_fleet(settings)
    servicer = GenerationServicer(settings, fleet, store, Metrics(registry))
    server = make_server(settings, registry)
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
