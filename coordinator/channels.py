"""Channels to the model services: how they are kept, and the TLS that the settings ask for."""

from collections.abc import Callable

import grpc

from coordinator.settings import CoordinatorSettings
from specdec.serving.server import CHANNEL_OPTIONS
from specdec.serving.tls import channel_credentials

_OPTIONS = (
    *CHANNEL_OPTIONS,
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 500),
    ("grpc.max_reconnect_backoff_ms", 1000),  # a peer that comes back is not kept waiting for gRPC's two minutes
)


def channel_opener(settings: CoordinatorSettings) -> Callable[[str], grpc.aio.Channel]:
    """Return what opens a channel to an address; call it, and what it returns, inside the running event loop."""
    name = settings.peer_tls_name
    options = (*_OPTIONS, ("grpc.ssl_target_name_override", name)) if name else _OPTIONS
    credentials = channel_credentials(settings.peer_tls_ca, settings.peer_tls_certificate, settings.peer_tls_key)
    return lambda address: grpc.aio.secure_channel(address, credentials, options=options)
