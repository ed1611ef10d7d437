"""The replicas of a model service: which of them answer, and what they serve.

Each is followed through ``grpc.health.v1.Health/Watch``: a replica that restarts breaks the stream, and is asked what
it serves before it is used again. So no call reaches a model that nobody has looked at.

A replica whose calls fail is out of use at once (a circuit breaker): it is left alone for a while, longer each time,
then probed by one call of nobody's (half-open), and used again when that is answered. So one that hangs costs those who
wait for it at that moment, and nobody after them.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextvars import Context
from typing import Any

import grpc
import structlog
from grpc_health.v1 import health_pb2, health_pb2_grpc

from coordinator.replica import RETRY_SECONDS, Replica
from coordinator.tasks import stop
from specdec.errors import SpecdecError

logger: structlog.stdlib.BoundLogger = structlog.stdlib.get_logger(__name__)


class Replicas:
    """All replicas of one service.

    Attributes:
        service: "draft" or "target".
        path: the gRPC service's full name.
        silence: seconds after which only a failure explains that a call is not answered.
    """

    def __init__(
        self,
        service: str,
        stub: Callable[[grpc.aio.Channel], Any],
        addresses: Sequence[str],
        open_channel: Callable[[str], grpc.aio.Channel],
        *,
        silence: float,
    ) -> None:
        """Open channels; inside the running event loop.

        Args:
            service: "draft" or "target"; what sessions remember their replica under.
            stub: makes the generated stub.
            addresses: host:port each, or ``dns:///`` names.
            open_channel: opens a channel to an address.
            silence: seconds after which only a failure explains that a call is not answered. For a draft it must not be
                so short that a slow proposal is dropped: whether a proposal counts may not depend on its tokens.
        """
        self.service = service
        self.path = f"specdec.v1.{service.capitalize()}Service"
        self.silence = silence
        channels = [open_channel(address) for address in addresses]
        self._replicas = [Replica(*each, stub(each[1])) for each in zip(addresses, channels, strict=True)]
        self._following: dict[str, asyncio.Task[None]] = {}
        self._decide: Callable[[], Awaitable[None]] = _decide_nothing
        self._changes = asyncio.Condition()

    def start(self, decide: Callable[[], Awaitable[None]]) -> None:
        """Begin to follow the replicas.

        Args:
            decide: is awaited when what a replica serves has changed, and sets each ``refusal``. An OSError or
                ValueError of it means that the replica cannot be used yet; it is asked again.
        """
        self._decide = decide
        for replica in self._replicas:
            self._follow(replica)

    async def close(self) -> None:
        """Stop following and close the channels."""
        await stop(*self._following.values())
        for replica in self._replicas:
            await replica.channel.close()

    def answering(self) -> list[Replica]:
        """Return the replicas that are there, used or refused."""
        return [replica for replica in self._replicas if replica.model is not None]

    def usable(self) -> list[Replica]:
        """Return the replicas that calls may go to."""
        return [replica for replica in self.answering() if replica.refusal == ""]

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

    def lost(self, replica: Replica) -> None:
        """Take a replica whose call failed as away until it says otherwise."""
        if replica.model is not None:  # else others have noticed the same before
            replica.failures += 1
            logger.warning("replica is away", service=self.service, address=replica.address, failures=replica.failures)
        self._follow(replica)

    def _follow(self, replica: Replica) -> None:
        if former := self._following.get(replica.address):
            former.cancel()
        replica.model = None
        following = asyncio.create_task(self._keep_following(replica), context=Context())  # not that of a failed call
        self._following[replica.address] = following

    async def _keep_following(self, replica: Replica) -> None:
        """Follow a replica as long as the process lives: whatever goes wrong is said and tried again."""
        pause = replica.pause
        while True:
            await self._attempt(self._decide(), replica)
            await asyncio.sleep(pause)
            await self._attempt(self._watch(replica), replica)
            replica.model = None
            pause = RETRY_SECONDS

    async def _attempt(self, work: Awaitable[None], replica: Replica) -> None:
        try:
            await work
        except grpc.aio.AioRpcError as error:
            logger.debug("replica does not answer", service=self.service, address=replica.address, why=str(error))
        except (SpecdecError, OSError, ValueError) as error:
            logger.warning("replica cannot be used", service=self.service, address=replica.address, why=str(error))
        except Exception:
            logger.exception("replica cannot be used", service=self.service, address=replica.address)

    async def _watch(self, replica: Replica) -> None:
        """Follow the health of a replica until the stream breaks."""
        watch = health_pb2_grpc.HealthStub(replica.channel).Watch(health_pb2.HealthCheckRequest())
        try:
            async for status in watch:
                serving = status.status == health_pb2.HealthCheckResponse.SERVING
                model = await replica.ask_model(self.silence) if serving else None
                replica.model, replica.refusal = model, None
                await self._decide()
        finally:
            watch.cancel()


async def _decide_nothing() -> None:
    """Leave every replica undecided, before the start."""
