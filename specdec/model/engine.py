"""The engine: many callers' works on one model, batched by one thread.

Handlers of the event loop submit works and await answers. One thread owns the model and every cache, so nothing here
is locked: calls go to it through a queue, answers come back through the loop.
"""

import asyncio
import logging
import queue
import threading
import time
from dataclasses import dataclass

import torch
from opentelemetry import trace

from specdec.errors import NotReady, QueueFull, SpecdecError
from specdec.fence import Fence
from specdec.model.ahead import Ahead
from specdec.model.batching import Batching
from specdec.model.call import Call, Release
from specdec.model.fences import Fences, stale
from specdec.model.language_model import LanguageModel
from specdec.model.session_caches import SessionCaches
from specdec.model.work import Advance, Answer, Done, Feed, Outcome, Work

__all__ = ["Advance", "Answer", "Done", "Engine", "EngineLimits", "EngineState", "Feed", "Outcome", "Work"]

HEARTBEAT_SECONDS = 1.0  # an idle thread shows this often that it lives
RETRY_SECONDS = 0.25  # the queue empties with every pass

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """What an engine may take.

    Attributes:
        max_batch_tokens: tokens of one forward pass, at least 2.
        max_sessions: sessions with a cache, at least 1.
        cache_tokens: tokens that cache room may be allocated for, over all sessions.
        max_queue: calls of newcomers that wait to start, at least 1; max_sessions more of sessions that are here.
        idle_seconds: after this long without a call a session may make room for another.
        ahead_tokens: tokens of a pass that is run while no call runs or waits, for likely next ones; 0: none is.
    """

    max_batch_tokens: int
    max_sessions: int
    cache_tokens: int
    max_queue: int
    idle_seconds: float
    ahead_tokens: int = 0

    def __post_init__(self) -> None:
        """Check the bounds."""
        least = {
            "max_batch_tokens": 2,
            "max_sessions": 1,
            "cache_tokens": 1,
            "max_queue": 1,
            "idle_seconds": 0,
            "ahead_tokens": 0,
        }
        for name, bound in least.items():
            if getattr(self, name) < bound:
                raise ValueError(f"{name} must be at least {bound}")


@dataclass(frozen=True, slots=True)
class EngineState:
    """Gauges and counters as of the engine's last turn.

    Attributes:
        running: calls being served.
        sessions: sessions with a cache.
        cached_tokens: tokens held by all caches.
        reserved_tokens: tokens that room is set aside for.
        passes: forward passes so far, those ahead of a call too.
        fed_tokens: tokens fed by them.
        evictions: sessions evicted so far.
        failed_passes: passes for calls that raised, in a row.
        failed_passes_ahead: passes ahead that raised so far.
    """

    running: int = 0
    sessions: int = 0
    cached_tokens: int = 0
    reserved_tokens: int = 0
    passes: int = 0
    fed_tokens: int = 0
    evictions: int = 0
    failed_passes: int = 0
    failed_passes_ahead: int = 0


class Engine:
    """Serves works on one model. All its methods are for one event loop's thread.

    Attributes:
        limits: what it may take.
        state: what it is doing.
        heartbeat: ``time.monotonic`` seconds at which the thread last showed that it lives.
        broken: set once the thread has ended by an error: no call is served any more.
    """

    def __init__(self, model: LanguageModel, advance: Advance, limits: EngineLimits) -> None:
        """Prepare an engine that takes nothing before ``start``.

        Args:
            model: used by the engine's thread alone from now on.
            advance: decides, for all works that are wholly fed, how they go on; called on that thread.
            limits: what the engine may take.
        """
        self.limits = limits
        self.state = EngineState()
        self.heartbeat = time.monotonic()
        caches = SessionCaches(model, limits.max_sessions, limits.cache_tokens, limits.idle_seconds)
        ahead = Ahead(model, advance, caches, limits.ahead_tokens)
        self._batching = Batching(model, advance, caches, limits.max_batch_tokens, ahead)
        self._fences = Fences()
        self._inbox: queue.SimpleQueue[Call | Release | None] = queue.SimpleQueue()
        self._open: set[Call | Release] = set()
        self._thread = threading.Thread(target=self._main, name="engine", daemon=True)
        self._ready = False
        self._releasing = 0
        self.broken = asyncio.Event()

    @property
    def queue_length(self) -> int:
        """Calls and releases that have not started."""
        return self._inbox.qsize() + len(self._batching.waiting)

    @property
    def heartbeat_age(self) -> float:
        """Seconds since the thread last showed that it lives; a pass that hangs lets it grow."""
        return time.monotonic() - self.heartbeat

    def start(self) -> None:
        """Start the thread; inside the running event loop."""
        self._loop = asyncio.get_running_loop()
        self._ready = True
        self._thread.start()

    async def close(self) -> None:
        """Fail every call that is not answered with NotReady, and wait until the thread has ended."""
        self._ready = False
        self._fail_open(NotReady, "the engine has been closed")
        self._inbox.put(None)
        if self._thread.ident is not None:
            await asyncio.to_thread(self._thread.join)

    async def run(self, work: Work) -> Answer:
        """Serve a work. Cancelling the awaiting task ends it before the next forward pass.

        A call under the fence of one that still runs waits for it; a higher fence ends lower ones at once.

        Raises:
            PrefixMissing: the tokens before its start are not cached here.
            StaleFence: a higher fence has been seen, before or meanwhile.
            QueueFull, CacheFull: there is no room now.
            NotReady: the engine is not started, or closed.
            InvalidParameter: a token id or the length is not the model's.
            SpecdecError: what the work or ``advance`` refused it with; plain: the forward pass failed.
        """
        self._admit(work.prefix.session_id, work.prefix.fence)
        here = self.limits.max_sessions if work.prefix.start else 0  # newcomers do not keep out who has begun
        if self.queue_length - self._releasing >= self.limits.max_queue + here:
            raise QueueFull("too many calls are waiting", retry_seconds=RETRY_SECONDS)
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._submit(Call(work, future, trace.get_current_span().get_span_context()))
        return await future

    async def release(self, session_id: str, fence: Fence, keep_length: int) -> None:
        """Give a session's cache up, after whatever still runs under the same fence, even for who waits no longer.

        Args:
            session_id: unknown ones have nothing to give up.
            fence: ends calls under a lower one.
            keep_length: leading tokens that stay cached until a newcomer needs the room; 0 frees all of it now.

        Raises:
            StaleFence: a higher fence has been seen.
            NotReady: the engine is not started, or closed.
        """
        self._admit(session_id, fence)
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._submit(Release(session_id, fence, keep_length, future))
        self._releasing += 1
        try:
            await future
        finally:
            self._releasing -= 1

    def _admit(self, session_id: str, fence: Fence) -> None:
        if not self._ready:
            raise NotReady("the engine is not running")
        if not self._fences.admit(session_id, fence):
            return
        for job in self._open:
            if job.session_id == session_id and not job.over:
                job.future.set_exception(stale(fence))

    def _submit(self, job: Call | Release) -> None:
        self._open.add(job)
        job.future.add_done_callback(lambda _: self._open.discard(job))
        self._inbox.put(job)

    def _fail_open(self, kind: type[SpecdecError], why: str) -> None:
        for job in self._open:
            if not job.over:
                job.future.set_exception(kind(why))

    def _break(self) -> None:
        """Answer all that is open and take nothing more; on the loop's thread, so that no call slips in between."""
        self._ready = False
        self._fail_open(SpecdecError, "the engine has failed")
        self.broken.set()

    def _main(self) -> None:
        try:
            with torch.inference_mode():
                while self._take():
                    self._batching.turn()
                    self._show()
        except Exception:
            _logger.exception("the engine's thread has ended")
            self._loop.call_soon_threadsafe(self._break)

    def _take(self) -> bool:
        """Move what has come to the batch, waiting up to a heartbeat for it when there is nothing to do. False: end."""
        self.heartbeat = time.monotonic()
        wait = min(HEARTBEAT_SECONDS, self._batching.rest_seconds)
        while True:
            try:
                job = self._inbox.get(timeout=wait)
            except queue.Empty:
                return True
            if job is None:
                return False
            self._batching.waiting.append(job)
            wait = 0.0

    def _show(self) -> None:
        batching, caches = self._batching, self._batching.caches
        self.state = EngineState(
            running=len(batching.running),
            sessions=len(caches),
            cached_tokens=caches.tokens,
            reserved_tokens=caches.room,
            passes=batching.passes + batching.ahead.passes,
            fed_tokens=batching.fed_tokens + batching.ahead.fed_tokens,
            evictions=caches.evictions,
            failed_passes=batching.failed_passes,
            failed_passes_ahead=batching.ahead.failed_passes,
        )
