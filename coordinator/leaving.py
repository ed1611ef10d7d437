"""Claims that are given up: waited for as a rule, and for as long as Redis is away in the background."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import structlog

from coordinator.deadline import seconds_until
from coordinator.session import Session
from coordinator.tasks import stop
from specdec.errors import PeerUnavailable, SpecdecError

MOMENT_SECONDS = 2.0  # in which a Redis that is there has taken it, and after which nobody waits for it any longer
MOMENT_SHARE = 0.8  # of the client's time that is left: it has yet to be told how its answer ended
AGAIN_SECONDS = 0.5  # and twice as long each time: a Redis that comes back has others to serve as well

logger: structlog.stdlib.BoundLogger = structlog.stdlib.get_logger(__name__)

GiveUp = Callable[[Session], Awaitable[None]]


class Leaving:
    """Gives claims up without holding anybody up. What does not succeed is logged: the lease runs out by itself."""

    def __init__(self, lease_seconds: float) -> None:
        """Begin with none.

        Args:
            lease_seconds: for how long it is tried: any longer, and nobody would be kept out by the claim.
        """
        self._lease_seconds = lease_seconds
        self._tasks: set[asyncio.Task[Any]] = set()

    async def claim(self, claiming: Coroutine[Any, Any, Session], give_up: GiveUp) -> Session:
        """Await a claim; a caller that leaves meanwhile does not wait for it and does not keep it."""
        task = asyncio.create_task(claiming)

        def give_back(claimed: asyncio.Task[Session]) -> None:
            if not claimed.cancelled() and claimed.exception() is None:
                self.begin(claimed.result(), give_up)

        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(give_back)
            self._keep(task)
            raise

    def begin(self, session: Session, give_up: GiveUp) -> asyncio.Task[None]:
        """Begin to give a claim up; it goes on whoever waits for it."""
        task = asyncio.create_task(self._try(session, give_up))
        self._keep(task)
        return task

    async def wait(self, session: Session, give_up: GiveUp) -> None:
        """Begin to give a claim up, and wait a moment for it."""
        left = seconds_until(session.deadline)
        moment = MOMENT_SECONDS if left is None else min(MOMENT_SECONDS, max(0.0, MOMENT_SHARE * left))
        await asyncio.wait({self.begin(session, give_up)}, timeout=moment)

    async def close(self) -> None:
        """Wait a moment for all that has begun, and end the rest."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(MOMENT_SECONDS):
                while self._tasks:  # a claim that has come about is given up by another
                    await asyncio.wait(self._tasks)
        while self._tasks:  # what ends may have one begin
            await stop(*self._tasks)

    def _keep(self, task: asyncio.Task[Any]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _try(self, session: Session, give_up: GiveUp) -> None:
        clock = asyncio.get_running_loop().time
        until, pause = clock() + self._lease_seconds, AGAIN_SECONDS
        while True:
            try:
                await give_up(session)
            except SpecdecError as error:
                if isinstance(error, PeerUnavailable) and clock() < until:
                    await asyncio.sleep(pause)
                    pause *= 2
                    continue
                logger.warning("a claim was not given up", session=session.session_id, why=error.message)
            return
