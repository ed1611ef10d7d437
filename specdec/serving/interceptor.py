"""What happens around every call that a server takes: its span, its errors, its end."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, TypeVar

import grpc
import structlog
from opentelemetry import trace
from opentelemetry.trace import Span

from specdec.errors import InvalidParameter, NotReady, SpecdecError
from specdec.serving import names
from specdec.serving.call_spans import SERVER_FAULTS, finish_server, server_span
from specdec.serving.reading import readable_or_error
from specdec.serving.status import passed_on, to_status
from specdec.serving.telemetry import extract, name_session
from specdec.serving.watches import PLUMBING
from specdec.wire import SESSION_ID

# A call that ends unfinished within this many seconds of its deadline is taken to have run into it: the caller's
# clock started earlier than ours, by the time the request was on the way, so its cancellation comes first.
DEADLINE_TOLERANCE_SECONDS = 0.1

Response = TypeVar("Response")
Metadata = Sequence[tuple[str, str | bytes]]
logger: structlog.stdlib.BoundLogger = structlog.stdlib.get_logger(__name__)


class CallInterceptor(grpc.aio.ServerInterceptor):
    """Gives every call a SERVER span for its whole life, and every error a status.

    Handlers are coroutines (unary) or async generators (server stream). A stream of requests is a sequence of calls:
    its handler is the unary one, which gets and answers one message at a time, and each is a call with its span.

    Handlers raise SpecdecError; anything else is INTERNAL without a word of it for the caller, and a log line. A
    cancellation passes through untouched; a stream's generator is closed in its own task before its call ends, not
    when it is garbage. Health and reflection pass by: every probe would make a span.

    Attributes:
        idle: set while no handler is running.
    """

    def __init__(self, check: Callable[[Any], None]) -> None:
        """Refuse what ``check`` refuses of the requests, as they are read."""
        self.idle = asyncio.Event()
        self.idle.set()
        self._check = check
        self._running = 0
        self._between: set[asyncio.Timeout] = set()  # of the streams that wait for a request
        self._closing = False

    def close_streams(self) -> None:
        """End streams of requests, each once the message in work is answered: the caller opens one elsewhere."""
        self._closing = True
        while self._between:  # taken out: a wait that is over must not be ended again
            self._between.pop().reschedule(0)

    async def intercept_service(self, continuation: Callable[..., Awaitable[Any]], details: Any) -> Any:
        """Wrap the handler of one call."""
        handler = await continuation(details)
        path = details.method.removeprefix("/")
        if handler is None or path.startswith(PLUMBING):
            return handler

        async def unary(request: Any, context: Any) -> Any:
            carrier = _carrier(details.invocation_metadata)
            _name_session(request)
            work = _answer(handler.unary_unary, request, context)
            del request  # see _forget_frames
            return await self._serve(path, carrier, context, work)

        # Written, not yielded: a coroutine gets the cancellation itself, a generator would be left suspended.
        async def stream(request: Any, context: Any) -> None:
            carrier = _carrier(details.invocation_metadata)
            _name_session(request)
            work = _write_all(handler.unary_stream, request, context)
            del request
            await self._serve(path, carrier, context, work)

        async def sequence(_: Any, context: Any) -> None:
            while (request := await self._next_request(context)) is not grpc.aio.EOF:
                _name_session(request)
                carrier = getattr(request, "trace_context", {})
                await self._serve(path, carrier, context, _write_one(handler.stream_stream, request, context))

        codec = (readable_or_error(handler.request_deserializer, self._check), handler.response_serializer)
        if handler.request_streaming:
            return grpc.stream_stream_rpc_method_handler(sequence, *codec)
        if handler.response_streaming:
            return grpc.unary_stream_rpc_method_handler(stream, *codec)
        return grpc.unary_unary_rpc_method_handler(unary, *codec)

    async def _next_request(self, context: Any) -> Any:
        """Return the next request of a stream, EOF when its caller has no more; end it when the server stops."""
        try:
            async with asyncio.timeout(0 if self._closing else None) as waiting:
                if not self._closing:
                    self._between.add(waiting)
                return await context.read()
        except TimeoutError:
            await context.abort_with_status(to_status(NotReady("the server is stopping")))
        finally:
            self._between.discard(waiting)

    async def _serve(self, path: str, carrier: Mapping[str, str], context: Any, work: Awaitable[Response]) -> Response:
        """Await the work of a call within its span, and answer what it raises."""
        self._running += 1
        self.idle.clear()
        try:
            with server_span(path, extract(carrier)) as span:
                try:
                    response = await work
                except grpc.aio.AbortError:
                    finish_server(span, _code_name(context))
                    raise
                except (Exception, asyncio.CancelledError) as error:  # only what is ours may be seen by the caller
                    await _answer_error(span, context, error)
                    raise
                finish_server(span, _code_name(context))
                return response
        finally:
            self._running -= 1
            if self._running == 0:
                self.idle.set()


async def _answer_error(span: Span, context: Any, error: BaseException) -> None:
    """End a call with the status of an error; raises, whether the caller is still there or not."""
    task = asyncio.current_task()
    if isinstance(error, _CallerGone) or (task is not None and task.cancelling()):
        # Nobody is there to answer, perhaps not even the server.
        _finish_cancelled(span, context)
        raise asyncio.CancelledError from error
    # A CancelledError that gets here is none of the call's: unanswered, it would leave the caller waiting.
    answer = _known_error(span, error)
    finish_server(span, answer.code, reason=answer.reason)
    _forget_frames(error)
    await context.abort_with_status(to_status(answer))


def _forget_frames(error: BaseException | None) -> None:
    """Let go of what the frames hold that an error and those before it went through, the request above all.

    A call's context keeps what ``abort_with_status`` raises, whose traceback leads to the context again: all that hangs
    on it waits for the garbage collector, which does not know how large a request is.
    """
    while error is not None:
        error.__traceback__ = None
        error = error.__cause__ or error.__context__


class _CallerGone(Exception):
    """A message could not be sent; grpc.aio may notice so before it cancels the call's task."""


async def _answer(method: Callable[[Any, Any], Awaitable[Response]], request: Any, context: Any) -> Response:
    if isinstance(request, InvalidParameter):
        raise request
    return await method(request, context)


async def _write_all(method: Callable[[Any, Any], AsyncGenerator[Any, None]], request: Any, context: Any) -> None:
    if isinstance(request, InvalidParameter):
        raise request
    async with aclosing(method(request, context)) as responses:
        async for response in responses:
            await _write(context, response)


async def _write_one(method: Callable[[Any, Any], Awaitable[Any]], request: Any, context: Any) -> None:
    await _write(context, await _answer(method, request, context))


async def _write(context: Any, response: Any) -> None:
    try:
        await context.write(response)
    except grpc.aio.AbortError:
        raise
    except grpc.aio.BaseError as error:
        raise _CallerGone from error


def _known_error(span: Span, error: BaseException) -> SpecdecError:
    """Log an error and return what the caller gets to know of it."""
    trace_id = trace.format_trace_id(span.get_span_context().trace_id)
    internal = SpecdecError(f"internal error, trace_id={trace_id}")
    if isinstance(error, SpecdecError):
        told = (passed_on(error) or internal) if error.from_peer else error
        log = logger.warning if told.code in SERVER_FAULTS else logger.debug
        log("call failed", code=told.code, reason=error.reason, detail=error.message)
        return told
    logger.error("call failed unexpectedly", exc_info=error)
    span.add_event("exception", {names.EXCEPTION_TYPE: type(error).__qualname__})
    return internal


def _name_session(request: Any) -> None:
    """Name the session of a request in what is logged of it; what is no id is left out."""
    session_id = getattr(getattr(request, "prefix", request), "session_id", "")
    if SESSION_ID.fullmatch(session_id):
        name_session(session_id)


def _carrier(metadata: Metadata) -> dict[str, str]:
    """Return the part of a call's metadata that may hold its trace context."""
    return {key: value for key, value in metadata if isinstance(value, str)}


def _code_name(context: Any) -> str:
    code = context.code()
    return code.name if isinstance(code, grpc.StatusCode) else "OK"


def _finish_cancelled(span: Span, context: Any) -> None:
    remaining = context.time_remaining()
    too_late = remaining is not None and remaining < DEADLINE_TOLERANCE_SECONDS
    finish_server(span, "DEADLINE_EXCEEDED" if too_late else "CANCELLED")
