"""A proxy for every gRPC call of one caller to one server: messages as bytes, each seen as it passes."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Self

import grpc

from specdec.v1 import generation_pb2 as v1
from tests.chaos.link import HOST, Link
from tests.chaos.plan import Phase
from tests.chaos.underway import GONE, Spot, Watch

REQUESTS = {
    "/specdec.v1.DraftService/ProposeStream": Phase.PROPOSING,
    "/specdec.v1.TargetService/VerifyStream": Phase.VERIFYING,
}
GENERATE = "/specdec.v1.GenerationService/Generate"
_OPTIONS = (
    ("grpc.max_receive_message_length", 2**24),
    ("grpc.max_send_message_length", 2**24),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 500),
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.use_local_subchannel_pool", 1),
)


class Tap:
    """Hears of the streams of answers that pass; does nothing by itself."""

    def begin(self, request: bytes) -> Any:
        """Return what stands for a new stream."""

    async def event(self, stream: Any, message: bytes) -> None:
        """Hear of an event that is about to be shown."""

    def end(self, stream: Any, status: str, trailing: Any) -> None:
        """Hear how it ended."""


class Message:
    """A message that has arrived here; a ``tests.chaos.underway.Underway``."""

    def __init__(self, carried: "_Carried", message: bytes, write: Callable[[bytes], Any]) -> None:
        """Hold it."""
        self.answers = carried.answers
        self.answered = carried.answered
        self.over = asyncio.Event()
        self._carried = carried
        self._message = message
        self._write = write

    async def deliver(self) -> None:
        """Let it go on."""
        self.answered.clear()
        await self._write(self._message)

    async def repeat(self) -> None:
        """Make the same call by itself. For an event it is the call that the event answers."""
        request = self._carried.first if self._carried.method == GENERATE else self._message
        again = self._carried.open()
        with suppress(*GONE):
            await again.write(request)
            await again.done_writing()
            async for _ in again:
                pass

    def cut(self) -> None:
        """Cut all connections of the caller to the server: HTTP/2 has one for all calls."""
        self._carried.proxy.link.cut()


class _Carried:
    """One call."""

    def __init__(self, proxy: "CallProxy", method: str, context: Any) -> None:
        self.proxy = proxy
        self.method = method
        self.first = b""
        self.spot: Spot | None = None
        self.answers = asyncio.Event()
        self.answers.set()
        self.answered = asyncio.Event()
        self._context = context
        self._stream: Any = None

    def open(self) -> Any:
        """Open the call to the server."""
        metadata = [(key, value) for key, value in self._context.invocation_metadata() if key != "user-agent"]
        call = self.proxy.channel.stream_stream(self.method)
        return call(timeout=self._context.time_remaining(), metadata=metadata)

    async def carry(self) -> None:
        """Carry it from its first message to its status."""
        call = self.open()
        towards = asyncio.create_task(self._towards(call))
        try:
            try:
                await self._back(call)
                code, details, trailing = await call.code(), await call.details(), await call.trailing_metadata()
            except grpc.aio.AioRpcError as error:
                code, details, trailing = error.code(), error.details(), error.trailing_metadata()
            if code is grpc.StatusCode.INTERNAL and not trailing:
                # How grpc.aio calls it that a message could not be sent: here it is the server that is away.
                code = grpc.StatusCode.UNAVAILABLE
            self._end(code.name, trailing)
            if code is grpc.StatusCode.OK:
                self._context.set_trailing_metadata(tuple(trailing or ()))
            else:
                await self._context.abort(code, details or "", tuple(trailing or ()))
        finally:
            self._end("CANCELLED", ())
            towards.cancel()
            call.cancel()
            await asyncio.gather(towards, return_exceptions=True)

    async def _towards(self, call: Any) -> None:
        if phase := REQUESTS.get(self.method):
            self.spot = self.proxy.spot(phase)
        with suppress(*GONE):  # the other direction gives the status
            while (message := await self._context.read()) is not grpc.aio.EOF:
                if self.method == GENERATE:
                    self.first = message
                    resumes = v1.GenerateRequest.FromString(message).HasField("resume_from")
                    self.spot = self.proxy.spot(Phase.STREAMING, resumes=resumes)
                    self._stream = self.proxy.tap.begin(message)
                if phase is None or self.spot is None:
                    await call.write(message)
                else:
                    await self.proxy.watch.passes(self.spot, Message(self, message, call.write))
            await call.done_writing()

    async def _back(self, call: Any) -> None:
        while (message := await call.read()) is not grpc.aio.EOF:
            self.answered.set()
            await self.answers.wait()
            if self.method == GENERATE and self.spot is not None:
                await self.proxy.tap.event(self._stream, message)
                await self.proxy.watch.passes(self.spot, Message(self, message, self._context.write))
            else:
                await self._context.write(message)

    def _end(self, status: str, trailing: Any) -> None:
        if self._stream is not None:
            self.proxy.tap.end(self._stream, status, trailing)
            self._stream = None


class CallProxy(grpc.GenericRpcHandler):
    """Carries calls of all methods; callers come through a link, so that their connection can be cut.

    Attributes:
        link: where callers connect.
        channel: to the server.
        watch: sees the calls of a round.
        tap: hears of answers to clients.
    """

    def __init__(self, watch: Watch, caller: str, server: str, tap: Tap | None = None) -> None:
        """Start nothing yet."""
        self.link = Link()
        self.channel: Any = None
        self.watch = watch
        self.tap = tap or Tap()
        self._caller = caller
        self._server_name = server
        self._server: Any = None

    async def __aenter__(self) -> Self:
        """Listen on any free port."""
        self._server = grpc.aio.server(options=(*_OPTIONS, ("grpc.so_reuseport", 0)))
        self._server.add_generic_rpc_handlers((self,))
        await self.link.__aenter__()
        self.link.to = self._server.add_insecure_port(f"{HOST}:0")
        await self._server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Listen no more, and break what is connected."""
        await self.link.__aexit__()
        await self._server.stop(0)
        if self.channel is not None:
            await self.channel.close()

    async def lead_to(self, port: int) -> None:
        """Carry to another port from now on."""
        former, self.channel = self.channel, grpc.aio.insecure_channel(f"{HOST}:{port}", options=_OPTIONS)
        if former is not None:
            await former.close()

    def spot(self, phase: Phase, *, resumes: bool = False) -> Spot:
        """Say where a call passes."""
        return Spot(phase, self._caller, self._server_name, resumes)

    def service(self, handler_call_details: Any) -> Any:
        """Take every method as a stream of bytes both ways, which is what each is on the wire."""

        async def carry(_: Any, context: Any) -> None:
            await _Carried(self, handler_call_details.method, context).carry()

        return grpc.stream_stream_rpc_method_handler(carry)
