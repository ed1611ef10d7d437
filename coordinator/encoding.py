"""Inputs become tokens beside the event loop: small ones as they come, large ones one at a time.

A text takes seconds a megabyte, and hundreds of bytes of memory a byte; nothing stops a tokenizer that has begun.
"""

import asyncio
from collections.abc import Sequence

from coordinator.requests import Served, encode_input
from specdec.errors import QueueFull
from specdec.v1 import generation_pb2

LARGE_BYTES = 32 * 2**10  # some 8,000 tokens; as many of the worst text take 0.1 s
MAX_WAITING = 16
RETRY_SECONDS = 1.0


class Encoding:
    """Encodes what requests give as input."""

    def __init__(self) -> None:
        """Start with nothing to do."""
        self._waiting = 0
        self._free = asyncio.Semaphore(1)  # while no large input is being encoded

    async def encode(
        self, request: generation_pb2.GenerateRequest, served: Served, committed: Sequence[int]
    ) -> list[int]:
        """Return the token ids of a request's input, as ``encode_input`` does.

        A caller that is cancelled leaves at once. A large input that is being encoded by then is encoded to its end,
        and until then no other is.

        Raises:
            InvalidParameter: the input cannot be encoded, or not be followed by an answer.
            QueueFull: too many large inputs are waiting.
        """
        if request.ByteSize() < LARGE_BYTES:
            return await asyncio.to_thread(encode_input, request, served, committed)
        await self._turn()
        work = asyncio.create_task(asyncio.to_thread(encode_input, request, served, committed))
        work.add_done_callback(self._let_go)
        try:
            await asyncio.wait((work,))  # which, cancelled, leaves it alone
            return work.result()
        finally:
            del work  # it holds its error, whose traceback holds this frame, and so the request

    def _let_go(self, work: asyncio.Task[list[int]]) -> None:
        self._free.release()
        if not work.cancelled():
            work.exception()  # looked at: whoever wanted to know may have left

    async def _turn(self) -> None:
        if self._waiting >= MAX_WAITING:
            raise QueueFull("too many large inputs are waiting to be encoded", retry_seconds=RETRY_SECONDS)
        self._waiting += 1
        try:
            await self._free.acquire()
        finally:
            self._waiting -= 1
