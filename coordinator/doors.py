"""Who may call, as whom, and how much."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_network
from typing import Any
from urllib.parse import unquote

import structlog

from coordinator.limits import ClientLimits
from coordinator.settings import CoordinatorSettings
from coordinator.tokens import Tokens
from specdec.errors import Unauthenticated

NOBODY = ""  # whose sessions they are without authentication: the id alone opens them
NETWORK_BITS = 64  # of an IPv6 address: one client has as many addresses as it likes beyond those
_SCHEME = "bearer"

logger: structlog.stdlib.BoundLogger = structlog.stdlib.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Caller:
    """Who makes a call.

    Attributes:
        principal: whose sessions it reaches.
        client: whom its work is counted to: the principal, or the address where nobody is known.
    """

    principal: str
    client: str


class Doors:
    """Lets callers in."""

    def __init__(self, settings: CoordinatorSettings) -> None:
        """Open the doors as far as the settings say."""
        self._tokens = Tokens(settings.tokens_file) if settings.tokens_file else None
        if self._tokens is not None and not settings.tls_certificate:
            logger.warning("tokens come in plaintext: is TLS ended before this port?")
        self._limits = ClientLimits(
            answers=settings.client_answers,
            calls=settings.client_calls_per_minute,
            tokens=settings.client_tokens_per_minute,
            answers_in_all=settings.max_answers,
        )

    def admit(self, context: Any) -> Caller:
        """Say who makes a call, and count it.

        Raises:
            Unauthenticated: the call bears no valid token; which of the reasons there are is not told.
            ClientLimit: the client calls too often.
        """
        principal = self._principal(context)
        caller = Caller(principal, principal or address_of(context.peer()))
        self._limits.count_call(caller.client)
        return caller

    def answering(self, caller: Caller, session_id: str) -> AbstractContextManager[Callable[[int], None]]:
        """Count an answer for as long as it runs; what is given counts its tokens.

        Raises:
            ClientLimit: the client has too many of them, or has had too many tokens.
            QueueFull: there are too many in all.
        """
        return self._limits.answering(caller.client, session_id)

    def _principal(self, context: Any) -> str:
        if self._tokens is None:
            return NOBODY
        principal = self._tokens.principal_of(_token(context))
        if principal is None:
            raise Unauthenticated("a valid token is needed, as 'authorization: Bearer TOKEN'")
        return principal


def address_of(peer: str) -> str:
    """Return the address, or for IPv6 the network, of a peer as gRPC names it: without its port."""
    kind, _, rest = peer.partition(":")
    if kind == "ipv4":
        return rest.rpartition(":")[0]
    if kind != "ipv6":
        return kind
    address = IPv6Address(unquote(rest).partition("]")[0].removeprefix("[").partition("%")[0])
    return str(address.ipv4_mapped or ip_network((address, NETWORK_BITS), strict=False))


def _token(context: Any) -> str:
    """Return the token that a call bears; the empty one, which is nobody's, when there is none or more than one."""
    values = [value for key, value in context.invocation_metadata() if key == "authorization"]
    if len(values) != 1 or not isinstance(values[0], str):  # what is no text comes as bytes
        return ""
    scheme, _, token = values[0].partition(" ")
    return token if scheme.lower() == _SCHEME else ""
