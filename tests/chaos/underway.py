"""Calls as they pass by, and something that lies in wait for one of them.

Links and proxies show every call to one ``Watch``. So a fault comes exactly while a call of its phase is under way.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

import grpc

from tests.chaos.plan import Phase, role

# Who is at the two ends of the path that a phase's calls take.
ENDS = {
    Phase.PROPOSING: ("coordinator", "draft"),
    Phase.VERIFYING: ("coordinator", "target"),
    Phase.COMMITTING: ("coordinator", "redis"),
    Phase.STREAMING: ("client", "coordinator"),
}


@dataclass(frozen=True, slots=True)
class Spot:
    """Where a call passes.

    Attributes:
        phase: of the round that the call is.
        caller: name of the process that calls.
        server: name of the process that answers.
        resumes: whether the call takes a lost answer up again: made twice, the second supersedes the first.
    """

    phase: Phase
    caller: str
    server: str
    resumes: bool = False

    def concerns(self, process: str) -> bool:
        """Tell whether a fault of a process may come here: it is at one end, or its kind is at neither."""
        return process in (self.caller, self.server) or role(process) not in ENDS[self.phase]


class Underway(Protocol):
    """A call that has arrived here and has not gone on.

    Attributes:
        answers: answers pass only while this is set.
        answered: set when an answer has arrived here.
        over: set when an ambush is done with it.
    """

    answers: asyncio.Event
    answered: asyncio.Event
    over: asyncio.Event

    async def deliver(self) -> None:
        """Let it go on."""

    async def repeat(self) -> None:
        """Make the same call once more, by itself, and let nobody have the answer."""

    def cut(self) -> None:
        """Cut the connection that it came on."""


# What a call's other end is, or its connection: gone.
GONE = (ConnectionError, grpc.RpcError, grpc.aio.BaseError, asyncio.InvalidStateError)

Act = Callable[[Underway], Awaitable[None]]


class Watch:
    """Sees every call; at most one ambush waits at a time."""

    def __init__(self) -> None:
        """See nothing yet."""
        self._where: Callable[[Spot], bool] | None = None
        self._caught: asyncio.Future[Underway] | None = None

    async def ambush(self, where: Callable[[Spot], bool], act: Act, seconds: float) -> None:
        """Do something with the next call of a kind.

        A call whose caller leaves before anything is done with it is let go, and the next one awaited.

        Raises:
            TimeoutError: no such call came, or it took too long.
        """
        async with asyncio.timeout(seconds):
            while True:
                call = await self._next(where)
                try:
                    await act(call)
                except GONE:
                    continue
                else:
                    return
                finally:
                    call.answers.set()
                    call.over.set()

    async def passes(self, spot: Spot, call: Underway) -> None:
        """Let a call go on, unless something waits for it: then whoever waits does what he wants with it."""
        if self._caught is None or self._where is None or not self._where(spot):
            await call.deliver()
            return
        self._where = None
        self._caught.set_result(call)
        await call.over.wait()

    async def _next(self, where: Callable[[Spot], bool]) -> Underway:
        self._where, self._caught = where, asyncio.get_running_loop().create_future()
        try:
            return await self._caught
        finally:
            self._where = self._caught = None
