"""Streams of health and reflection, which last as long as their client: they must not hold up the end of a server.

``grpc.aio.Server.stop`` waits for every open call, a health watch included, for the whole grace, and calling it a
second time to cut that short crashes when the first completes at that moment (grpcio 1.85).
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import grpc

PLUMBING = "grpc."  # first part of the names of health's and reflection's services


class WatchInterceptor(grpc.aio.ServerInterceptor):
    """Ends the streams of health and reflection with OK once ``closing`` is set; other calls pass by.

    Attributes:
        closing: set when the server begins to stop.
    """

    def __init__(self) -> None:
        self.closing = asyncio.Event()

    async def intercept_service(self, continuation: Callable[..., Awaitable[Any]], details: Any) -> Any:
        """Wrap the handler of one call."""
        handler = await continuation(details)
        if handler is None or not handler.response_streaming or not details.method.startswith(f"/{PLUMBING}"):
            return handler

        async def watch(request: Any, context: Any) -> None:  # health: a coroutine that writes
            await self._until_closing(handler.unary_stream(request, context))

        async def reflect(requests: Any, context: Any) -> None:  # reflection: an async generator
            async def answer() -> None:
                async for response in handler.stream_stream(requests, context):
                    await context.write(response)

            await self._until_closing(answer())

        codec = (handler.request_deserializer, handler.response_serializer)
        if handler.request_streaming:
            return grpc.stream_stream_rpc_method_handler(reflect, *codec)
        return grpc.unary_stream_rpc_method_handler(watch, *codec)

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
