"""One call on its way through the engine."""

import asyncio
import time
from dataclasses import dataclass, field
from typing import Any

import torch
from opentelemetry.trace import SpanContext

from specdec.fence import Fence
from specdec.model.language_model import Segment
from specdec.model.session_cache import SessionCache
from specdec.model.work import Answer, Done, Work


class Settled:
    """A future that the engine's thread settles, and whose end, whoever caused it, the thread looks up."""

    future: "asyncio.Future[Any]"

    @property
    def over(self) -> bool:
        """Whether nobody waits any more: answered, cancelled by its caller, superseded or closed."""
        return self.future.done()

    @property
    def void(self) -> bool:
        """Whether there is nothing left to do for it."""
        return self.over

    def resolve(self, result: object) -> None:
        """Hand a result to the event loop; it is discarded there if the call is over by then."""
        self.future.get_loop().call_soon_threadsafe(_settle, self.future, result)

    def fail(self, error: Exception) -> None:
        """Hand an error to the event loop; it is discarded there if the call is over by then."""
        self.future.get_loop().call_soon_threadsafe(_settle, self.future, error)


@dataclass(eq=False, slots=True)
class Release(Settled):
    """A wish to give a session's cache up."""

    session_id: str
    fence: Fence
    keep_length: int
    future: "asyncio.Future[Any]"

    @property
    def void(self) -> bool:
        """As of a call, but that its caller waits no longer is no reason to keep what was given up."""
        return self.over and not self.future.cancelled()


@dataclass(eq=False, slots=True)
class Call(Settled):
    """A work, the sequence it runs on, and what it has taken so far.

    Attributes:
        work: what is wanted.
        future: where the Answer goes.
        span: the caller's span.
        submitted: when it came, in ``time.perf_counter`` seconds.
        session: the cache it runs on; set when it starts.
        rows: logits wanted of the last positions of the present sequence.
        parts: [n, vocabulary] logits of them that earlier chunks have given.
    """

    work: Work
    future: "asyncio.Future[Any]"
    span: SpanContext
    submitted: float = field(default_factory=time.perf_counter)
    session: SessionCache = field(init=False)
    rows: int = 0
    parts: list[torch.Tensor] = field(default_factory=list)
    reused_length: int = 0
    fed_tokens: int = 0
    passes: int = 0
    batch_size: int = 0
    pass_tokens: int = 0
    queue_seconds: float = 0.0
    forward_seconds: float = 0.0
    sampling_seconds: float = 0.0

    @property
    def session_id(self) -> str:
        """The session it is for."""
        return self.work.prefix.session_id

    @property
    def fence(self) -> Fence:
        """Its caller's claim."""
        return self.work.prefix.fence

    @property
    def waited_seconds(self) -> float:
        """Seconds since it was submitted."""
        return time.perf_counter() - self.submitted

    def segment(self, count: int) -> Segment:
        """Return the next ``count`` tokens as a part of a pass, with those rows that are wanted of them."""
        later = self.session.pending - count
        return Segment(self.session.cache, self.session.take(count), min(count, max(0, self.rows - later)))

    def enter_pass(self, fed_tokens: int, batch_size: int, pass_tokens: int) -> None:
        """Count a pass that starts now; the tokens fed are this call's, those of the pass everybody's."""
        if not self.passes:
            self.queue_seconds = self.waited_seconds
        self.passes += 1
        self.fed_tokens += fed_tokens
        self.batch_size = max(self.batch_size, batch_size)
        self.pass_tokens += pass_tokens

    def take_rows(self) -> torch.Tensor:
        """Return the [rows, vocabulary] logits of a wholly fed sequence and forget them."""
        parts, self.parts = self.parts, []
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def answer(self, done: Done) -> None:
        """Settle the cache as the work says, and hand the answer over."""
        cached_length = self.session.settle(done.keep, done.committed)
        self.resolve(
            Answer(
                result=done.result,
                cached_length=cached_length,
                reused_length=self.reused_length,
                fed_tokens=self.fed_tokens,
                passes=self.passes,
                batch_size=self.batch_size,
                pass_tokens=self.pass_tokens,
                queue_seconds=self.queue_seconds if self.passes else self.waited_seconds,
                forward_seconds=self.forward_seconds,
                sampling_seconds=self.sampling_seconds,
            )
        )


def _settle(future: "asyncio.Future[Any]", outcome: object) -> None:
    if future.done():
        return
    if isinstance(outcome, Exception):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)
