"""The coordinators, over gRPC."""

from collections.abc import Callable, Iterator
from typing import Any

import grpc

from client.access import Metadata
from client.failures import RequestFailed, from_rpc_error
from client.patience import Patience
from client.resuming import answer_events
from specdec.v1 import generation_pb2 as v1
from specdec.v1.generation_pb2_grpc import GenerationServiceStub

SHORT_CALL_SECONDS = 10.0
_OPTIONS = [
    ("grpc.max_receive_message_length", 16 * 2**20),
    ("grpc.keepalive_time_ms", 60_000),  # a peer that vanished without a word is noticed
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.initial_reconnect_backoff_ms", 100),  # the pauses are ours, see patience
    ("grpc.min_reconnect_backoff_ms", 5_000),  # time for one attempt to connect
    ("grpc.max_reconnect_backoff_ms", 1_000),
]


class Coordinators:
    """Several addresses of one service: the first that answers is kept until it fails, then the next is tried."""

    def __init__(
        self,
        addresses: list[str],
        credentials: grpc.ChannelCredentials,
        metadata: Metadata,
        on_wait: Callable[[RequestFailed, float], None],
    ) -> None:
        """Prepare the channels; nothing is connected yet.

        Args:
            addresses: gRPC targets, at least one.
            credentials: TLS or plaintext.
            metadata: sent with every call.
            on_wait: told about each failure that will be tried again, and the pause in seconds.
        """
        self._addresses = addresses
        self._metadata = metadata
        self._on_wait = on_wait
        self._current = 0
        self._channels = [grpc.secure_channel(address, credentials, options=_OPTIONS) for address in addresses]
        self._stubs = [GenerationServiceStub(channel) for channel in self._channels]

    def __enter__(self) -> "Coordinators":
        """Give the coordinators to a ``with`` block."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the channels."""
        for channel in self._channels:
            channel.close()

    def answer(self, request: v1.GenerateRequest, seconds: float | None) -> Iterator[v1.GenerateResponse]:
        """Stream an answer; lost streams are taken up again.

        Args:
            request: with session_id and expected_length.
            seconds: time for the whole answer, None for no limit.

        Raises:
            RequestFailed: see ``answer_events``.
        """
        patience = Patience(seconds, on_wait=self._on_wait)
        return answer_events(
            request, lambda attempt: self._stream(attempt, patience.remaining()), self.session, patience
        )

    def session(self, session_id: str) -> v1.GetSessionResponse | None:
        """Look at a session; None when there is none.

        Raises:
            RequestFailed: the coordinators refuse or are away.
        """
        try:
            found: v1.GetSessionResponse = self._ask("GetSession", v1.GetSessionRequest(session_id=session_id))
        except RequestFailed as failure:
            if failure.code == "NOT_FOUND":
                return None
            raise
        return found

    def delete(self, session_id: str) -> None:
        """End a session.

        Raises:
            RequestFailed: the coordinators refuse or are away.
        """
        self._ask("DeleteSession", v1.DeleteSessionRequest(session_id=session_id))

    def _stream(self, request: v1.GenerateRequest, seconds: float | None) -> Iterator[v1.GenerateResponse]:
        call = self._stubs[self._current].Generate(request, timeout=seconds, metadata=self._metadata)
        try:
            yield from call
        except grpc.RpcError as error:
            raise self._failure(error) from error
        finally:
            call.cancel()  # a reader that went away; without effect on a stream that has ended

    def _ask(self, method: str, message: Any) -> Any:
        patience = Patience(on_wait=self._on_wait)
        while True:
            try:
                ask = getattr(self._stubs[self._current], method)
                return ask(message, timeout=SHORT_CALL_SECONDS, metadata=self._metadata)
            except grpc.RpcError as error:
                failure = self._failure(error)
                if not failure.lost:
                    raise failure from error
                patience.wait(failure)

    def _failure(self, error: grpc.RpcError) -> RequestFailed:
        failure = from_rpc_error(error, self._addresses[self._current])
        if failure.lost:
            self._current = (self._current + 1) % len(self._addresses)
        return failure
