"""Sessions in Redis: the truth about committed tokens, and who may add to them.

A session is three keys in one Cluster slot: ``specdec:{id}:meta`` (hash), ``specdec:{id}:tokens`` (little-endian
uint32) and ``specdec:{id}:sources`` (one byte a token). Every change is one Lua script that checks the caller's fence.

What holds, whatever is repeated, late, cancelled or interleaved:

- A committed token is never removed or replaced, except by ``delete``.
- Only the highest fence that Redis has seen adds tokens. Once given up (``interrupt``, or a commit with a finish
  reason) a claim adds nothing more.
- Every call may be repeated; a repeat that comes late changes nothing.

Redis may come back older than it was, or empty. Whoever still runs the session heals it with the next write, fence and
all, when what Redis holds is a prefix of what the caller holds. If it is not, somebody else has committed since: the
caller's tokens are the lost ones (``DataLost``). A fence of the same counter and another owner was taken after Redis
came back, so it is the newer one (``StaleFence``). A session that Redis remembers as deleted stays deleted.
"""

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import structlog
from redis import exceptions
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import ExponentialBackoff
from redis.commands.core import AsyncScript

from coordinator import scripts
from coordinator.leaving import Leaving
from coordinator.session import Session, SessionState, TokenSource, Usage
from coordinator.session_record import answer_fields, from_reply, not_found, round_fields
from coordinator.tasks import minding_cancellation
from specdec.errors import DataLost, PeerUnavailable, SessionBusy, StaleFence
from specdec.fence import Fence
from specdec.prefix import token_bytes

SOCKET_SECONDS = 3.0  # also runs out when this process is busy, so not much shorter
CALL_SECONDS = 10.0  # with all repeats, and with waiting for a connection, which others may have for a while
RETRIES = 2
MAX_CONNECTIONS = 32
RETRY_SECONDS = 1.0

# Redis is away, or there and cannot serve now. What a script runs into has no class: its code stands in the message.
_AWAY = (
    TimeoutError,
    exceptions.ConnectionError,
    exceptions.TimeoutError,
    exceptions.ReadOnlyError,
    exceptions.OutOfMemoryError,
    exceptions.ClusterDownError,
    exceptions.TryAgainError,
)
_AWAY_CODES = ("READONLY", "OOM ", "MISCONF", "NOREPLICAS", "BUSY ")

logger: structlog.stdlib.BoundLogger = structlog.stdlib.get_logger(__name__)


class SessionStore:
    """The sessions of one Redis. Safe to share between the tasks of one event loop.

    Every method raises PeerUnavailable when Redis is away, full, read-only or still loading; a change may then have
    happened or not, and calling again settles it.
    """

    def __init__(
        self,
        redis_url: str,
        *,
        ttl_seconds: float,
        lease_seconds: float,
        options: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Name the Redis; it is first asked by the first call.

        Args:
            redis_url: ``redis://``, ``rediss://`` or ``unix://``.
            ttl_seconds: how long a session is kept after its last change.
            lease_seconds: how long a coordinator that stays silent keeps a session from others.
            options: of each connection, beside what the URL says: username, password, ssl_ca_certs.
        """
        pool: BlockingConnectionPool = BlockingConnectionPool.from_url(
            redis_url,
            max_connections=MAX_CONNECTIONS,
            timeout=CALL_SECONDS,
            socket_timeout=SOCKET_SECONDS,
            socket_connect_timeout=SOCKET_SECONDS,
            retry=Retry(ExponentialBackoff(cap=0.2, base=0.02), RETRIES),
            **options,
        )
        self._redis = Redis.from_pool(pool)
        self._ttl_ms = round(ttl_seconds * 1000)
        self._lease_ms = round(lease_seconds * 1000)
        self._leaving = Leaving(lease_seconds)
        self._read = self._redis.register_script(scripts.READ)
        self._create = self._redis.register_script(scripts.CREATE)
        self._take = self._redis.register_script(scripts.TAKE)
        self._write = self._redis.register_script(scripts.WRITE)
        self._delete = self._redis.register_script(scripts.DELETE)

    async def ping(self) -> None:
        """Ask whether Redis serves."""
        async with _calling():
            await self._redis.ping()

    async def close(self) -> None:
        """Wait a moment for claims that are being given up, and close the connections."""
        await self._leaving.close()
        await self._redis.aclose()

    async def create(self, session: Session) -> None:
        """Store a new session under ``session.fence`` and its lease.

        The fence's counter is raised when a deleted session of this id had a higher one.

        Raises:
            SessionBusy: the id exists.
            SessionNotFound: it exists and is another principal's.
        """
        length = session.length
        fields = answer_fields(session) + round_fields(session, SessionState.RUNNING)
        content = (token_bytes(session.tokens), bytes(session.sources))
        claim = (session.fence.counter, session.fence.owner, self._lease_ms, self._ttl_ms, session.principal)
        status, *rest = await self._run(self._create, session.session_id, *claim, *content, *fields)
        if status == b"NOT_FOUND":
            raise not_found(session.session_id)
        if status == b"BUSY":
            raise SessionBusy(f"Session {session.session_id} exists already.")
        session.fence = Fence(int(rest[0]), session.fence.owner)
        session.state, session.stored_length = SessionState.RUNNING, length

    async def read(self, session_id: str, principal: str) -> Session:
        """Return a session without claiming it. RUNNING means under a live lease; without one it is INTERRUPTED.

        Raises:
            SessionNotFound: unknown, or another principal's.
            DataLost: Redis has lost a part of it.
        """
        return from_reply(session_id, await self._run(self._read, session_id, principal))

    async def take(self, session_id: str, principal: str, owner: str, *, above: int = 0) -> Session:
        """Claim a session that nobody is working on; the fence becomes (counter + 1, owner).

        A caller that is cancelled meanwhile does not keep the claim.

        Args:
            session_id: the session.
            principal: who asks.
            owner: 32 hexadecimal digits, new for each claim.
            above: highest counter a model server named when it refused; the new one lies above it, too.

        Raises:
            SessionBusy: somebody else's lease is live.
            SessionNotFound, DataLost: as for ``read``.
        """
        return await self._claim(session_id, principal, owner, above, supersede=0)

    async def resume(self, session_id: str, principal: str, owner: str, *, above: int = 0) -> Session:
        """Claim a session like ``take``, superseding even a live lease."""
        return await self._claim(session_id, principal, owner, above, supersede=1)

    async def begin_answer(self, session: Session, new_tokens: list[int]) -> None:
        """Append the prompt of the next answer, with the parameters that ``session`` now holds.

        The session changes (tokens, sources, prompt_length, usage, state, no finish) once Redis has it, and stays as
        it is when the call fails.

        Raises:
            StaleFence, DataLost: as for ``commit``.
        """
        tokens = session.tokens + new_tokens
        begun = replace(
            session,
            tokens=tokens,
            sources=session.sources + bytes([TokenSource.PROMPT]) * len(new_tokens),
            prompt_length=len(tokens),
            usage=Usage(prompt_tokens=len(tokens)),
            finish_reason=None,
            matched_stop=None,
            stored_length=0,  # the parameters go with the whole session
        )
        await self.commit(begun)
        for name in Session.__slots__:
            setattr(session, name, getattr(begun, name))

    async def commit(self, session: Session) -> None:
        """Make everything that ``session`` holds when the call starts the stored truth, and renew lease and TTL.

        Appends the tokens that Redis lacks, writes usage, replicas and, with a finish reason, the finish; that ends the
        claim and its lease.

        Raises:
            StaleFence: superseded, given up or deleted.
            DataLost: what Redis holds is not a prefix of this session.
        """
        state = SessionState.FINISHED if session.finish_reason else SessionState.RUNNING
        lease_ms = 0 if session.finish_reason else self._lease_ms
        await self._put(session, state, lease_ms, (session.stored_length, 0))

    async def interrupt(self, session: Session) -> None:
        """Give the claim up, with all that ``session`` holds committed; nothing happens when it is superseded.

        Raises:
            DataLost: what Redis holds is not a prefix of this session.
        """
        await self._give_up(session, (session.stored_length, 0))

    async def leave(self, session: Session) -> None:
        """Give the claim up like ``interrupt``; while Redis is away it is tried on in the background. Never raises."""
        await self._leaving.wait(session, self.interrupt)

    def withdraw(self, session: Session) -> None:
        """Give up, in the background, a claim that may have been stored or not: if not, nothing is stored by this."""
        self._leaving.begin(session, self._give_up_stored)

    async def renew(self, session: Session) -> None:
        """Renew the lease between rounds: a commit of nothing new, which also finds out about being superseded."""
        await self.commit(session)

    async def delete(self, session_id: str, principal: str) -> Session:
        """Delete a session; return what it held, under a fence above all of its claims.

        Raises:
            SessionNotFound: unknown, or another principal's.
            DataLost: Redis had lost a part of it; it is deleted all the same.
        """
        found = await self._run(self._read, session_id, principal)
        owner = secrets.token_hex(16)
        status, *rest = await self._run(self._delete, session_id, principal, owner, self._ttl_ms)
        if status == b"NOT_FOUND":
            raise not_found(session_id)
        return replace(from_reply(session_id, found), fence=Fence(int(rest[0]), owner))

    async def _claim(self, session_id: str, principal: str, owner: str, above: int, *, supersede: int) -> Session:
        async def claiming() -> Session:
            claim = (principal, owner, self._lease_ms, self._ttl_ms, above, supersede)
            reply = await self._run(self._take, session_id, *claim)
            if reply[0] == b"BUSY":
                raise SessionBusy(f"Session {session_id} is running elsewhere.", retry_seconds=reply[1] / 1000)
            return from_reply(session_id, reply)

        return await self._leaving.claim(claiming(), self._give_up_stored)

    async def _give_up_stored(self, session: Session) -> None:
        await self._give_up(session, (session.length,))

    async def _give_up(self, session: Session, base_lengths: Iterable[int]) -> None:
        state = SessionState.FINISHED if session.finish_reason else SessionState.INTERRUPTED
        with contextlib.suppress(StaleFence):  # then the claim is somebody else's already
            await self._put(session, state, 0, base_lengths)

    async def _put(self, session: Session, state: SessionState, lease_ms: int, base_lengths: Iterable[int]) -> None:
        """Write what Redis lacks from the first of the lengths on that it holds."""
        length = session.length  # the session may grow while Redis is awaited
        changing = round_fields(session, state)
        for base_length in base_lengths:
            tail = (token_bytes(session.tokens[base_length:length]), bytes(session.sources[base_length:length]))
            fields = changing if base_length else changing + answer_fields(session)
            claim = (session.fence.counter, session.fence.owner, lease_ms, self._ttl_ms, base_length)
            status, *_ = await self._run(self._write, session.session_id, *claim, *tail, *fields)
            if status != b"BEHIND":
                break
        if status == b"STALE":
            # Not under which fence: it goes on to a client, and is a coordinator's word to the model servers.
            raise StaleFence(f"Session {session.session_id} was taken over, given up or deleted.")
        if status == b"CONFLICT":
            raise DataLost(f"The store holds other tokens of session {session.session_id} than were committed.")
        session.state = state
        session.stored_length = max(session.stored_length, length)

    async def _run(self, script: AsyncScript, session_id: str, *arguments: str | bytes | int) -> list[Any]:
        keys = [f"specdec:{{{session_id}}}:{part}" for part in ("meta", "tokens", "sources")]
        async with _calling():
            reply: list[Any] = await script(keys=keys, args=arguments)
        return reply


@contextlib.asynccontextmanager
async def _calling() -> AsyncIterator[None]:
    """Bound a call, and tell Redis being away from a mistake of ours, which passes through.

    Raises:
        PeerUnavailable: Redis is away or did not answer in time; what was asked for may happen all the same.
    """
    try:
        async with asyncio.timeout(CALL_SECONDS):
            with minding_cancellation():
                yield
    except (*_AWAY, exceptions.ResponseError) as error:
        if not isinstance(error, _AWAY) and not any(code in str(error) for code in _AWAY_CODES):
            raise
        if isinstance(error, exceptions.AuthenticationError):
            logger.error("redis refuses this coordinator", why=str(error))
        raise PeerUnavailable("Redis is away or cannot serve now.", retry_seconds=RETRY_SECONDS) from error
