"""What the clients of both model services do: keep a session to a warm replica, send what it lacks, release it.

A call says which committed tokens it stands on, from the length that the replica has last acknowledged; a replica that
does not hold them is asked again from 0. The calls of an answer to a replica share a stream.
"""

import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import structlog

from coordinator.acknowledged import Acknowledged
from coordinator.deadline import seconds_until
from coordinator.replica import Replica
from coordinator.replicas import Replicas
from coordinator.session import Session
from specdec.errors import CacheFull, NotReady, PeerUnavailable, PrefixMissing, QueueFull, SpecdecError, StaleFence
from specdec.serving.calls import CallStream, call
from specdec.v1 import common_pb2
from specdec.wire import MAX_COUNTER, fence_to_message

RELEASE_TIMEOUT_SECONDS = 5.0
AWAY = (PeerUnavailable, NotReady)
FULL = (CacheFull, QueueFull)
_COUNTER = re.compile(r"[0-9]{1,16}")

logger: structlog.stdlib.BoundLogger = structlog.stdlib.get_logger(__name__)

MakeRequest = Callable[[common_pb2.CommittedPrefix], Any]


class SessionClients:
    """Keeps sessions to replicas of one service; a client of the service builds on it."""

    def __init__(self, replicas: Replicas, method: str) -> None:
        """Name the service.

        Args:
            replicas: of the service.
            method: that takes and answers a stream of requests.
        """
        self._replicas = replicas
        self._method = method
        # By identity, while an answer is generated: until the former claim on a session that is taken over has ended,
        # there are two of them, each with calls of its own.
        self._acknowledged: dict[int, Acknowledged] = {}

    async def release(self, session: Session, *, keep_length: int) -> None:
        """Give the session's cache up where it is warm, but for its first tokens."""
        address = session.replicas.get(self._replicas.service)
        warm = [replica for replica in self._replicas.usable() if replica.address == address]
        await self._release_on(warm, session, keep_length)

    async def free(self, session: Session) -> None:
        """Free the session's cache wherever it may be: a round that runs may not have been committed."""
        await self._release_on(self._replicas.usable(), session, 0)

    async def _release_on(self, replicas: Sequence[Replica], session: Session, keep_length: int) -> None:
        fence = fence_to_message(session.fence)
        request = common_pb2.ReleaseRequest(session_id=session.session_id, fence=fence, keep_length=keep_length)
        path = f"{self._replicas.path}/Release"
        for replica in replicas:
            try:
                await call(
                    replica.stub.Release, path, request, timeout=RELEASE_TIMEOUT_SECONDS, address=replica.address
                )
            except SpecdecError as error:  # it is away, or another has claimed the session: nothing to give
                logger.debug("not released", session=session.session_id, why=error.message)

    def forget(self, session: Session) -> None:
        """Forget what a replica holds, and end the stream to it; the next call asks again. No call may be running."""
        if held := self._acknowledged.pop(id(session), None):
            held.stream.close()

    async def _leave(self, replica: Replica, session: Session) -> None:
        """Take a session away from a replica that has no room for more of it; what it holds there may go."""
        held = self._acknowledged.get(id(session))
        self.forget(session)
        if held and held.cached_length:
            await self._release_on([replica], session, held.cached_length)
        session.replicas.pop(self._replicas.service, None)  # nothing is warm there

    def _candidates(self, session: Session) -> Iterator[Replica]:
        """Give the usable replicas: the session's own first, then those with few sessions, in any order of equals."""
        usable = [replica for replica in self._replicas.usable() if self._fits(replica, session)]
        warm = session.replicas.get(self._replicas.service)
        yield from (replica for replica in usable if replica.address == warm)
        loads = Counter(acknowledged.replica.address for acknowledged in self._acknowledged.values())
        others = [replica for replica in usable if replica.address != warm]
        others.sort(key=lambda replica: (loads[replica.address], random.random()))
        yield from (replica for replica in others if replica.usable)  # by now: those before may have taken their time

    def _fits(self, replica: Replica, session: Session) -> bool:  # noqa: ARG002
        """Whether the replica may serve the session."""
        return True

    async def _ask(self, replica: Replica, session: Session, make_request: MakeRequest) -> Any:
        """Ask a replica, once more from 0 when it does not hold what it is thought to hold."""
        held = self._acknowledged.get(id(session))
        if held is None or held.replica is not replica:
            held = self._begin(replica, session)
        try:
            response = await self._send(replica, held, make_request(held.prefix(session)))
        except PrefixMissing:
            held.cached_length = 0
            response = await self._send(replica, held, make_request(held.prefix(session)))
        held.cached_length = response.cached_length
        return response

    def _begin(self, replica: Replica, session: Session) -> Acknowledged:
        self.forget(session)
        session.replicas[self._replicas.service] = replica.address  # from now on it may hold something to release
        method = getattr(replica.stub, self._method)
        stream = CallStream(
            lambda: method(timeout=seconds_until(session.deadline)),
            f"{self._replicas.path}/{self._method}",
            replica.address,
        )
        held = self._acknowledged[id(session)] = Acknowledged(replica, stream)
        return held

    async def _send(self, replica: Replica, held: Acknowledged, request: Any) -> Any:
        try:
            response = await held.stream.call(request, timeout=self._replicas.silence)
        except AWAY as error:
            self._replicas.lost(replica, error.message)
            raise
        except StaleFence as error:
            _check_counter(error)
            raise
        replica.failures = 0
        return response


def _check_counter(error: StaleFence) -> None:
    """Check that an error names a counter that a claim can rise above.

    Raises:
        SpecdecError: it does not, so that whoever raised it is broken.
    """
    counter = error.metadata.get("counter", "")
    if not (_COUNTER.fullmatch(counter) and 0 < int(counter) < MAX_COUNTER):
        raise SpecdecError("a model server says that a claim is stale, and not under which") from error
