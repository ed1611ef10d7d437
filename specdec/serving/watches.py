"""Calls of health and reflection, whose streams last as long as their client: they must not hold up a server's end.

``grpc.aio.Server.stop`` waits for every open call, a health watch included, for the whole grace, and calling it a
second time to cut that short crashes when the first completes at that moment (grpcio 1.85).
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import grpc

from specdec.errors import InvalidParameter
from specdec.serving.reading import readable_or_error
from specdec.serving.status import to_status

PLUMBING = "grpc."  # first part of the names of health's and reflection's services


class WatchInterceptor(grpc.aio.ServerInterceptor):
    """Ends the streams of health and reflection with OK once ``closing`` is set; calls of other services pass by.

    Attributes:
        closing: set when the server begins to stop.
    """

    def __init__(self) -> None:
        self.closing = asyncio.Event()

    async def intercept_service(self, continuation: Callable[..., Awaitable[Any]], details: Any) -> Any:
        """Wrap the handler of one call."""
        handler = await continuation(details)
        if handler is None or not details.method.startswith(f"/{PLUMBING}"):
            return handler

        async def check(request: Any, context: Any) -> Any:
            return await handler.unary_unary(await _message(request, context), context)

        async def watch(request: Any, context: Any) -> None:  # health: a coroutine that writes
            await self._until_closing(handler.unary_stream(await _message(request, context), context))

        async def reflect(requests: Any, context: Any) -> None:  # reflection: an async generator
            async def answer() -> None:
                messages = (await _message(request, context) async for request in requests)
                async for response in handler.stream_stream(messages, context):
                    await context.write(response)

            await self._until_closing(answer())

        codec = (readable_or_error(handler.request_deserializer), handler.response_serializer)
        if handler.request_streaming:
            return grpc.stream_stream_rpc_method_handler(reflect, *codec)
        if handler.response_streaming:
            return grpc.unary_stream_rpc_method_handler(watch, *codec)
        return grpc.unary_unary_rpc_method_handler(check, *codec)

    async def _until_closing(self, stream: Coroutine[Any, Any, None]) -> None:
        streaming, closing = asyncio.create_task(stream), asyncio.create_task(self.closing.wait())
        try:
            await asyncio.wait((streaming, closing), return_when=asyncio.FIRST_COMPLETED)
            if streaming.done():
                streaming.result()
        finally:
            closing.cancel()
            streaming.cancel()
            await asyncio.wait((streaming, closing))


async def _message(request: Any, context: Any) -> Any:
    """Return a request that is a message; end the call of one that is none."""
    if isinstance(request, InvalidParameter):
        await context.abort_with_status(to_status(request))
    return request
