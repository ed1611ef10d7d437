"""The replicas of a model service: which of them answer, and what they serve.

Each is followed through ``grpc.health.v1.Health/Watch``: a replica that restarts breaks the stream, and is asked what
it serves before it is used again. So no call reaches a model that nobody has looked at. Names are resolved again and
again: a replica that is new under one is taken in, one that has gone from it and does not answer is dropped.

A replica whose calls fail is out of use at once (a circuit breaker): it is left alone for a while, longer each time,
then probed by one call of nobody's (half-open), and used again when that is answered. So one that hangs costs those who
wait for it at that moment, and nobody after them.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextvars import Context
from typing import Any

import grpc
import structlog
from grpc_health.v1 import health_pb2, health_pb2_grpc

from coordinator.places import is_name, name_of, resolve
from coordinator.replica import RETRY_SECONDS, TRIES_UNSAID, Replica
from coordinator.tasks import stop
from specdec.errors import SpecdecError

RESOLVE_SECONDS = 5.0
FAILURES_OF_A_BROKEN_ONE = 3  # in a row

logger: structlog.stdlib.BoundLogger = structlog.stdlib.get_logger(__name__)


class Replicas:
    """All replicas of one service.

    Attributes:
        service: "draft" or "target".
        path: the gRPC service's full name.
        places: where they are, as the settings name them.
        silence: seconds after which only a failure explains that a call is not answered.
    """

    def __init__(
        self,
        service: str,
        stub: Callable[[grpc.aio.Channel], Any],
        places: Sequence[str],
        open_channel: Callable[[str, str], grpc.aio.Channel],
        *,
        silence: float,
    ) -> None:
        """Know of no replica yet.

        Args:
            service: "draft" or "target"; what sessions remember their replica under.
            stub: makes the generated stub.
            places: host:port each, or ``dns:///name:port``.
            open_channel: opens a channel to an address that was found under a name, or an empty one.
            silence: seconds after which only a failure explains that a call is not answered. For a draft it must not be
                so short that a slow proposal is dropped: whether a proposal counts may not depend on its tokens.
        """
        self.service = service
        self.path = f"specdec.v1.{service.capitalize()}Service"
        self.silence = silence
        self._stub = stub
        self.places = places
        self._open_channel = open_channel
        self._found: dict[str, Sequence[str]] = {}
        self._replicas: dict[str, Replica] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._decide: Callable[[], Awaitable[None]] = _decide_nothing
        self._changes = asyncio.Condition()

    def start(self, decide: Callable[[], Awaitable[None]]) -> None:
        """Begin to follow the replicas; inside the running event loop.

        Args:
            decide: is awaited when what a replica serves has changed, and sets each ``refusal``. An OSError or
                ValueError of it means that the replica cannot be used yet; it is asked again.
        """
        self._decide = decide
        for place in self.places:
            if is_name(place):
                self._start(self._keep_finding(place))
            else:
                self._find(place, [place])

    async def close(self) -> None:
        """Stop following and close the channels."""
        await stop(*self._tasks)
        for replica in self._replicas.values():
            await replica.channel.close()

    def answering(self) -> list[Replica]:
        """Return the replicas that are there, used or refused; the thread that serves metrics asks, too."""
        return [replica for replica in list(self._replicas.values()) if replica.model is not None]

    def usable(self) -> list[Replica]:
        """Return the replicas that calls may go to."""
        return [replica for replica in list(self._replicas.values()) if replica.usable]

    async def wait_for(self, condition: Callable[[], Any], seconds: float) -> None:
        """Wait until a condition on the replicas holds.

        Raises:
            TimeoutError: it did not come to hold in time.
        """
        async with asyncio.timeout(seconds), self._changes:
            await self._changes.wait_for(condition)

    async def announce(self) -> None:
        """Let everybody who waits look again: a decision was made."""
        async with self._changes:
            self._changes.notify_all()

    def lost(self, replica: Replica, why: str) -> None:
        """Take a replica whose call failed, and why, as away until it says otherwise."""
        if self._replicas.get(replica.address) is not replica:  # DNS has dropped it meanwhile
            return
        if replica.model is not None:  # else others have noticed the same before
            replica.failures += 1
            self._say_away(replica, why)
        self._follow(replica)

    def failed(self, replica: Replica, why: str) -> None:
        """Note that a call failed, and why, through no fault of its own. A replica that does nothing else is lost."""
        if replica.failures + 1 < FAILURES_OF_A_BROKEN_ONE:
            replica.failures += 1
        else:
            self.lost(replica, why)

    async def _keep_finding(self, name: str) -> None:
        """Follow what DNS says of a name as long as the process lives; when it says nothing, what it said holds."""
        known = True
        while True:
            try:
                self._find(name, await resolve(name))
                known = True
            except OSError as error:
                if known:  # not every few seconds
                    logger.warning("name is not resolved", service=self.service, name=name, why=str(error))
                known = False
            await asyncio.sleep(RESOLVE_SECONDS)

    def _find(self, place: str, addresses: Sequence[str]) -> None:
        self._found[place] = addresses
        for address in addresses:
            if address not in self._replicas:
                channel = self._open_channel(address, name_of(place))
                self._replicas[address] = Replica(address, channel, self._stub(channel))
                self._follow(self._replicas[address])

    def _follow(self, replica: Replica) -> None:
        if replica.following:
            replica.following.cancel()
        replica.model = None
        replica.following = self._start(self._keep_following(replica))

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work, context=Context())  # not that of a call that failed
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _keep_following(self, replica: Replica) -> None:
        """Follow a replica as long as it is in its place: whatever goes wrong is said and tried again."""
        pause = replica.pause
        while any(replica.address in addresses for addresses in self._found.values()):
            await self._attempt(self._decide(), replica)
            await asyncio.sleep(pause)
            await self._attempt(self._watch(replica), replica)
            replica.model = None
            pause = RETRY_SECONDS
        await self._drop(replica)

    async def _drop(self, replica: Replica) -> None:
        """Forget a replica that DNS does not name any more and that does not answer."""
        logger.info("replica has gone", service=self.service, address=replica.address)
        del self._replicas[replica.address]
        await self._attempt(self._decide(), replica)
        await asyncio.sleep(self.silence)  # no call that may still be in work there lasts longer
        await replica.channel.close()

    async def _attempt(self, work: Awaitable[None], replica: Replica) -> None:
        """Do what may fail, and say why it did, unless the log has said it."""
        try:
            await work
        except grpc.aio.AioRpcError as error:
            self._say_away(replica, f"{error.code().name}: {error.details()}")
        except SpecdecError as error:
            self._say_away(replica, error.message)
        except (OSError, ValueError) as error:
            if _is_news(replica, repr(error)):
                logger.warning("replica cannot be used", service=self.service, address=replica.address, why=str(error))
        except Exception as error:
            if _is_news(replica, repr(error)):
                logger.exception("replica cannot be used", service=self.service, address=replica.address)

    def _say_away(self, replica: Replica, why: str) -> None:
        """Say that a replica is away: once, when it was there; of one that never was, after some tries.

        When the cause has become another, it is said, too, but not before as many tries again.
        """
        replica.tries_unsaid -= 1
        if replica.tries_unsaid % TRIES_UNSAID == 0 and _is_news(replica, why):
            logger.warning("replica is away", service=self.service, address=replica.address, why=why)

    async def _watch(self, replica: Replica) -> None:
        """Follow the health of a replica until the stream breaks."""
        watch = health_pb2_grpc.HealthStub(replica.channel).Watch(health_pb2.HealthCheckRequest())
        try:
            async for status in watch:
                if status.status == health_pb2.HealthCheckResponse.SERVING:
                    replica.model, replica.refusal = await replica.ask_model(self.silence), None
                    replica.tries_unsaid = 1
                else:
                    replica.model = None
                    self._say_away(replica, "it is not serving")
                await self._decide()
                replica.trouble = ""
            self._say_away(replica, "it has stopped")
        finally:
            watch.cancel()


def _is_news(replica: Replica, why: str) -> bool:
    """Whether the log has not said this of a replica last."""
    before, replica.trouble = replica.trouble, why
    return why != before


async def _decide_nothing() -> None:
    """Leave every replica undecided, before the start."""
