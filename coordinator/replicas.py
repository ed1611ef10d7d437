"""The replicas of a model service: which of them answer, and what they serve.

Each is followed through ``grpc.health.v1.Health/Watch``: a replica that restarts breaks the stream, and is asked what
it serves before it is used again. So no call reaches a model that nobody has looked at.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
import structlog
from grpc_health.v1 import health_pb2, health_pb2_grpc

from coordinator.tasks import stop
from specdec.errors import SpecdecError
from specdec.serving.status import from_rpc_error
from specdec.v1 import common_pb2

RECONNECT_SECONDS = 0.5
INFO_TIMEOUT_SECONDS = 5.0

logger: structlog.stdlib.BoundLogger = structlog.stdlib.get_logger(__name__)


@dataclass(slots=True)
class Replica:
    """One address of a model service.

    Attributes:
        address: host:port.
        channel: to it.
        stub: the generated stub over the channel.
        model: what it serves; None while it does not answer.
        refusal: why what it serves is not used; empty when it is, None while that is not decided.
    """

    address: str
    channel: grpc.aio.Channel
    stub: Any
    model: common_pb2.ModelInfo | None = None
    refusal: str | None = None

    @property
    def has_no_vocabulary(self) -> bool:
        """Whether it is a draft that knows only tokens it was shown: it fits any target, and may know nothing."""
        model = self.model
        return model is not None and not (model.vocabulary_size or model.vocabulary_fingerprint)


class Replicas:
    """All replicas of one service.

    Attributes:
        service: "draft" or "target".
        path: the service's full name.
    """

    def __init__(
        self,
        service: str,
        path: str,
        stub: Callable[[grpc.aio.Channel], Any],
        addresses: Sequence[str],
        open_channel: Callable[[str], grpc.aio.Channel],
    ) -> None:
        """Open channels; inside the running event loop.

        Args:
            service: what sessions remember their replica under.
            path: full name of the gRPC service.
            stub: makes the generated stub.
            addresses: host:port each, or ``dns:///`` names.
            open_channel: opens a channel to an address.
        """
        self.service = service
        self.path = path
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
        logger.warning("replica is away", service=self.service, address=replica.address)
        self._follow(replica)

    def _follow(self, replica: Replica) -> None:
        if former := self._following.get(replica.address):
            former.cancel()
        replica.model = None
        self._following[replica.address] = asyncio.create_task(self._keep_following(replica))

    async def _keep_following(self, replica: Replica) -> None:
        """Follow a replica as long as the process lives: whatever goes wrong is said and tried again."""
        pause = 0.0
        while True:
            await self._attempt(self._decide(), replica)
            await asyncio.sleep(pause)
            await self._attempt(self._watch(replica), replica)
            replica.model = None
            pause = RECONNECT_SECONDS

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
        health = health_pb2_grpc.HealthStub(replica.channel)
        async for status in health.Watch(health_pb2.HealthCheckRequest()):
            serving = status.status == health_pb2.HealthCheckResponse.SERVING
            model = await _ask_model(replica) if serving else None
            replica.model, replica.refusal = model, None
            await self._decide()


async def _decide_nothing() -> None:
    """Leave every replica undecided, before the start."""


async def _ask_model(replica: Replica) -> common_pb2.ModelInfo:
    """Ask what a replica serves; outside of any trace."""
    request = common_pb2.GetModelInfoRequest()
    try:
        response = await replica.stub.GetModelInfo(request, timeout=INFO_TIMEOUT_SECONDS)
    except grpc.aio.AioRpcError as error:
        raise from_rpc_error(error) from error
    model: common_pb2.ModelInfo = response.model
    return model
