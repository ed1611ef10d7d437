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
    ("grpc.dns_min_time_between_resolutions_ms", 1000),  # nor is one that comes back at another address under its name
)


def channel_opener(settings: CoordinatorSettings) -> Callable[[str, str], grpc.aio.Channel]:
    """Return what opens a channel; call it, and what it returns, inside the running event loop.

    What is returned takes an address and the name under which DNS gave it, which the certificate there must carry; the
    empty name is the address's own host.
    """
    credentials = channel_credentials(settings.peer_tls_ca, settings.peer_tls_certificate, settings.peer_tls_key)

    def open_channel(address: str, found_under: str) -> grpc.aio.Channel:
        name = settings.peer_tls_name or found_under
        override = (("grpc.ssl_target_name_override", name),) if settings.peer_tls_ca and name else ()
        return grpc.aio.secure_channel(address, credentials, options=(*_OPTIONS, *override))

    return open_channel
