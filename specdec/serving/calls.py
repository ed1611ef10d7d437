"""Calls of other services: one alone, or one after another over a stream. Each has a CLIENT span and known errors."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import grpc

from specdec.errors import PeerUnavailable, SpecdecError
from specdec.serving.call_spans import client_span, finish, peer_attributes
from specdec.serving.status import from_rpc_error
from specdec.serving.telemetry import inject

Response = TypeVar("Response")


async def call(
    method: Callable[..., Awaitable[Response]], path: str, request: Any, *, timeout: float, address: str
) -> Response:
    """Call a unary method of another service inside a CLIENT span, sending the trace context along.

    Cancelling the awaiting task cancels the call.

    Args:
        method: of a stub, such as ``stub.Propose``.
        path: its full name, such as ``specdec.v1.DraftService/Propose``.
        request: the message to send.
        timeout: seconds until the call is given up.
        address: of the server, host:port, for the span.

    Raises:
        SpecdecError: the class that the server raised; PeerUnavailable when it is away or too slow.
    """
    with _calling(path, peer_attributes(address)):
        return await method(request, timeout=timeout, metadata=tuple(inject().items()))


class CallStream:
    """Calls of one method, one after another over one stream: what setting up each of them costs is saved.

    The stream opens with the first call and again with the one after a failure: a failed call ends it. Whoever makes
    one must close it.
    """

    def __init__(self, method: Callable[[], Any], path: str, address: str) -> None:
        """Name the method; nothing is sent yet.

        Args:
            method: of a stub, such as ``stub.ProposeStream``, whose requests have a ``trace_context``.
            path: its full name, such as ``specdec.v1.DraftService/ProposeStream``.
            address: of the server, host:port, for the spans.
        """
        self._method = method
        self._path = path
        self._peer = peer_attributes(address)
        self._stream: Any = None

    async def call(self, request: Any, *, timeout: float) -> Any:
        """Send a request and return its answer, as ``call`` does; the one before must have ended.

        Args:
            request: the message to send; its trace context is set here.
            timeout: seconds until the call is given up.

        Raises:
            SpecdecError: the class that the server raised; PeerUnavailable when it is away or too slow.
        """
        with _calling(self._path, self._peer):
            request.trace_context.update(inject())
            async with asyncio.timeout(timeout):
                return await self._exchange(request)

    async def _exchange(self, request: Any) -> Any:
        if self._stream is None or self._stream.done():
            self._stream = self._method()
        try:
            await self._stream.write(request)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.INTERNAL:  # how grpc.aio calls it that a message could not be sent
                raise PeerUnavailable("peer is away: the stream has ended") from error
            raise
        response = await self._stream.read()
        if response is grpc.aio.EOF:
            raise PeerUnavailable("peer ended the stream without an answer")
        return response

    def close(self) -> None:
        """End the stream, and with it a call that runs."""
        if self._stream is not None:
            self._stream.cancel()


@contextmanager
def _calling(path: str, peer: dict[str, str | int]) -> Iterator[None]:
    """Span a call and turn what it fails with into what the server raised."""
    with client_span(path, peer) as span:
        try:
            yield
        except asyncio.CancelledError:
            finish(span, "CANCELLED", is_error=True)
            raise
        except grpc.aio.AioRpcError as error:
            known = from_rpc_error(error)
            finish(span, error.code().name, is_error=True, reason=known.reason)
            raise known from error
        except TimeoutError as error:
            late = PeerUnavailable("peer is away: no answer in time", metadata={"grpc_code": "DEADLINE_EXCEEDED"})
            finish(span, "DEADLINE_EXCEEDED", is_error=True, reason=late.reason)
            raise late from error
        except SpecdecError as error:
            finish(span, error.code, is_error=True, reason=error.reason)
            raise
        finish(span, "OK")
