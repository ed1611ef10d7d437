"""What happens around every call: its span and its errors, on the server's side and on the caller's.

Written by hand because opentelemetry-instrumentation-grpc 0.66b2, as tried, leaves uncaught errors and deadlines
without a status, loses the client span of a cancelled stream, uses the attribute names from before the stable
convention, and globally instruments the exporter's own channel too.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, aclosing, asynccontextmanager
from typing import Any, TypeVar

import grpc
import structlog
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, StatusCode

from specdec.errors import SpecdecError
from specdec.serving import names
from specdec.serving.status import from_rpc_error, to_status
from specdec.serving.telemetry import extract, inject, tracer
from specdec.serving.watches import PLUMBING

# A call that ends unfinished within this many seconds of its deadline is taken to have run into it: the caller's
# clock started earlier than ours, by the time the request was on the way, so its cancellation comes first.
DEADLINE_TOLERANCE_SECONDS = 0.1

# At fault is the server, by OpenTelemetry's convention for gRPC; other codes are no error of its span.
_SERVER_FAULTS = frozenset({"UNKNOWN", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS"})
_SPAN_NAMES = {"specdec.v1.GenerationService/Generate": names.SPAN_GENERATE}

Metadata = Sequence[tuple[str, str | bytes]]
Response = TypeVar("Response")
logger: structlog.stdlib.BoundLogger = structlog.stdlib.get_logger(__name__)


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
    with _span(path, SpanKind.CLIENT, None) as span:
        host, _, port = address.rpartition("/")[2].rpartition(":")
        span.set_attribute(names.SERVER_ADDRESS, host)
        if port.isdigit():
            span.set_attribute(names.SERVER_PORT, int(port))
        try:
            response = await method(request, timeout=timeout, metadata=inject())
        except grpc.aio.AioRpcError as error:
            known = from_rpc_error(error)
            _finish(span, error.code().name, is_error=True, reason=known.reason)
            raise known from error
        except asyncio.CancelledError:
            _finish(span, "CANCELLED", is_error=True)
            raise
        _finish(span, "OK")
        return response


class CallInterceptor(grpc.aio.ServerInterceptor):
    """Gives every call a SERVER span for its whole life, and every error a status.

    Handlers are coroutines (unary) or async generators (server stream). They raise SpecdecError; anything else is
    INTERNAL without a word of it for the caller, and a log line. A cancellation passes through untouched; a stream's
    generator is closed in its own task before its call ends, not when it is garbage. Health and reflection pass by:
    every probe would make a span.

    Attributes:
        idle: set while no handler is running.
    """

    def __init__(self) -> None:
        self.idle = asyncio.Event()
        self.idle.set()
        self._running = 0

    async def intercept_service(self, continuation: Callable[..., Awaitable[Any]], details: Any) -> Any:
        """Wrap the handler of one call."""
        handler = await continuation(details)
        path = details.method.removeprefix("/")
        if handler is None or path.startswith(PLUMBING):
            return handler

        async def unary(request: Any, context: Any) -> Any:
            async with self._around(path, details.invocation_metadata, context):
                return await handler.unary_unary(request, context)

        # Written, not yielded: a coroutine gets the cancellation itself, a generator would be left suspended.
        async def stream(request: Any, context: Any) -> None:
            async with (
                self._around(path, details.invocation_metadata, context),
                aclosing(handler.unary_stream(request, context)) as responses,
            ):
                async for response in responses:
                    await _write(context, response)

        codec = {
            "request_deserializer": handler.request_deserializer,
            "response_serializer": handler.response_serializer,
        }
        if handler.response_streaming:
            return grpc.unary_stream_rpc_method_handler(stream, **codec)
        return grpc.unary_unary_rpc_method_handler(unary, **codec)

    @asynccontextmanager
    async def _around(self, path: str, metadata: Metadata, context: Any) -> AsyncIterator[None]:
        self._running += 1
        self.idle.clear()
        try:
            with _span(path, SpanKind.SERVER, extract(metadata)) as span:
                async with _answering_errors(span, context):
                    yield
        finally:
            self._running -= 1
            if self._running == 0:
                self.idle.set()


@asynccontextmanager
async def _answering_errors(span: Span, context: Any) -> AsyncIterator[None]:
    try:
        yield
    except grpc.aio.AbortError:
        _finish_server(span, _code_name(context))
        raise
    except (Exception, asyncio.CancelledError) as error:  # outermost: only what is ours may be seen by the caller
        task = asyncio.current_task()
        if isinstance(error, _CallerGone) or (task is not None and task.cancelling()):
            # Nobody is there to answer, perhaps not even the server.
            _finish_cancelled(span, context)
            raise asyncio.CancelledError from error
        # A CancelledError that gets here is none of the call's: unanswered, it would leave the caller waiting.
        answer = _known_error(span, error)
        _finish_server(span, answer.code, reason=answer.reason)
        await context.abort_with_status(to_status(answer))
    else:
        _finish_server(span, _code_name(context))


class _CallerGone(Exception):
    """A message could not be sent; grpc.aio may notice so before it cancels the call's task."""


async def _write(context: Any, response: Any) -> None:
    try:
        await context.write(response)
    except grpc.aio.AbortError:
        raise
    except grpc.aio.BaseError as error:
        raise _CallerGone from error


def _known_error(span: Span, error: BaseException) -> SpecdecError:
    """Log an error and return what the caller gets to know of it."""
    if isinstance(error, SpecdecError):
        log = logger.warning if error.code in _SERVER_FAULTS else logger.debug
        log("call failed", code=error.code, reason=error.reason, detail=error.message)
        return error
    logger.error("call failed unexpectedly", exc_info=error)
    span.add_event("exception", {names.EXCEPTION_TYPE: type(error).__qualname__})
    trace_id = trace.format_trace_id(span.get_span_context().trace_id)
    return SpecdecError(f"internal error, trace_id={trace_id}")


def _span(path: str, kind: SpanKind, parent: Context | None) -> AbstractContextManager[Span]:
    """Start the span of a call as the current one; ``_finish`` alone decides its status."""
    return tracer().start_as_current_span(
        _SPAN_NAMES.get(path, path.rpartition("/")[2]),
        context=parent,
        kind=kind,
        attributes={names.RPC_SYSTEM: "grpc", names.RPC_METHOD: path},
        record_exception=False,
        set_status_on_exception=False,
    )


def _code_name(context: Any) -> str:
    code = context.code()
    return code.name if isinstance(code, grpc.StatusCode) else "OK"


def _finish_cancelled(span: Span, context: Any) -> None:
    remaining = context.time_remaining()
    too_late = remaining is not None and remaining < DEADLINE_TOLERANCE_SECONDS
    _finish_server(span, "DEADLINE_EXCEEDED" if too_late else "CANCELLED")


def _finish_server(span: Span, code: str, reason: str = "") -> None:
    _finish(span, code, is_error=code in _SERVER_FAULTS, reason=reason)


def _finish(span: Span, code: str, *, is_error: bool = False, reason: str = "") -> None:
    span.set_attribute(names.RPC_STATUS, code)
    if reason:
        span.set_attribute(names.ERROR_REASON, reason)
    if is_error:
        span.set_attribute(names.ERROR_TYPE, code)
        span.set_status(StatusCode.ERROR)
