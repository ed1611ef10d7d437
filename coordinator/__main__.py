"""Run the coordinator: ``python -m coordinator --target-addresses HOST:PORT --draft-addresses HOST:PORT``."""

import sys

import uvloop
from prometheus_client import CollectorRegistry

from coordinator.channels import channel_opener
from coordinator.fleet import Fleet
from coordinator.metrics import Metrics
from coordinator.replicas import Replicas
from coordinator.requests import check_counts
from coordinator.servicer import GenerationServicer
from coordinator.session_store import SessionStore
from coordinator.settings import CoordinatorSettings
from specdec.serving import telemetry
from specdec.serving.server import Server
from specdec.v1.draft_pb2_grpc import DraftServiceStub
from specdec.v1.generation_pb2_grpc import add_GenerationServiceServicer_to_server
from specdec.v1.target_pb2_grpc import TargetServiceStub


def make_fleet(settings: CoordinatorSettings) -> Fleet:
    """Make the fleet that the settings name; inside the running event loop."""
    open_channel = channel_opener(settings)
    return Fleet(
        Replicas("target", TargetServiceStub, settings.target_addresses, open_channel, silence=settings.verify_timeout),
        Replicas("draft", DraftServiceStub, settings.draft_addresses, open_channel, silence=settings.propose_timeout),
        tokenizer=settings.tokenizer,
        max_gamma=settings.max_gamma,
        max_new_tokens=settings.max_new_tokens,
    )


def make_store(settings: CoordinatorSettings) -> SessionStore:
    """Make the store that the settings name."""
    return SessionStore(
        settings.redis_url,
        ttl_seconds=settings.session_ttl,
        lease_seconds=settings.lease_seconds,
        options=settings.redis_options,
    )


def make_server(settings: CoordinatorSettings, registry: CollectorRegistry) -> Server:
    """Make the server that the settings name; inside the running event loop."""
    return Server(settings, registry, max_request_bytes=settings.max_request_bytes, check=check_counts)


async def serve(settings: CoordinatorSettings) -> None:
    """Serve until SIGTERM or SIGINT."""
    telemetry.configure("specdec-coordinator", settings.log_level)
    registry = CollectorRegistry()
    store = make_store(settings)
    fleet = make_fleet(settings)
    servicer = GenerationServicer(settings, fleet, store, Metrics(registry))
    server = make_server(settings, registry)
    add_GenerationServiceServicer_to_server(servicer, server)
    server.end_on_signals()
    await server.start()
    fleet.start(server.set_serving)
    await server.run_until_end(servicer.drain)
    await fleet.close()
    await store.close()


def main() -> None:
    """Read the settings and serve."""
    uvloop.run(serve(CoordinatorSettings.load(sys.argv[1:])))


if __name__ == "__main__":
    main()
