"""Continuous batching: what runs on the engine's thread, one turn after another."""

import logging
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, SpanKind

from specdec.errors import InvalidParameter, NumericalFailure, SpecdecError
from specdec.model.ahead import Ahead
from specdec.model.call import Call, Release
from specdec.model.gathering import Gathering
from specdec.model.language_model import LanguageModel
from specdec.model.pass_clock import PassClock
from specdec.model.schedule import share_tokens
from specdec.model.session_caches import SessionCaches
from specdec.model.work import Advance, Done, Feed, Outcome
from specdec.serving import names

_logger = logging.getLogger(__name__)
_tracer = trace.get_tracer("specdec.model")


class Batching:
    """Owns the model and all caches; takes whatever waits into the next forward pass.

    A session runs one call at a time: what comes for it meanwhile waits, in order.

    Attributes:
        waiting: calls and releases that have not started.
        running: calls that feed, longest unserved first.
        caches: of all sessions.
        ahead: what idle time is used for.
        passes: forward passes so far.
        fed_tokens: tokens fed by them.
        failed_passes: passes that raised, in a row; 0 once one succeeds.
    """

    def __init__(
        self, model: LanguageModel, advance: Advance, caches: SessionCaches, max_batch_tokens: int, ahead: Ahead
    ) -> None:
        """Start with nothing to do.

        Args:
            model: feeds sequences.
            advance: decides how works go on.
            caches: an empty set of them.
            max_batch_tokens: tokens of one pass at most.
            ahead: gets the turns that nothing else needs.
        """
        self._model = model
        self._advance = advance
        self._max_batch_tokens = max_batch_tokens
        self.caches = caches
        self.ahead = ahead
        self.waiting: list[Call | Release] = []
        self.running: list[Call] = []
        self.passes = 0
        self.fed_tokens = 0
        self.failed_passes = 0
        self._gathering = Gathering()

    @property
    def rest_seconds(self) -> float:
        """For how long there is nothing to do unless something comes."""
        if self.running:
            return self._gather_seconds
        if self.waiting:
            return 0.0
        return self.ahead.quiet_seconds if self.ahead.pending else math.inf

    def turn(self) -> None:
        """Let go of calls that are over, start what waits, and run one forward pass: ahead if nothing else is due.

        A pass may be left to a later turn, while others are due that would better be in it.
        """
        ended = {call for call in self.running if call.over}
        for call in ended:
            self._end(call)
        self.running = [call for call in self.running if call not in ended]
        self._start_waiting()
        if self.running:
            if not self._gather_seconds:
                self._run_pass()
        elif self.ahead.pending and not self.ahead.quiet_seconds:
            self.ahead.run_pass()

    @property
    def _gather_seconds(self) -> float:
        resting_since = [session.used_at for session in self.caches if not (session.running or session.released)]
        return self._gathering.wait_seconds(resting_since, len(self.running))

    def _start_waiting(self) -> None:
        busy = {call.session_id for call in self.running}
        held: list[Call | Release] = []
        for job in self.waiting:
            if job.void:
                continue
            if job.session_id in busy:
                held.append(job)
            elif isinstance(job, Release):
                self._release(job)
            elif self._start(job):
                self.running.append(job)
                busy.add(job.session_id)
        self.waiting = held

    def _release(self, release: Release) -> None:
        self.caches.give_up(release.session_id, release.keep_length)
        release.resolve(None)

    def _start(self, call: Call) -> bool:
        """Begin a work. Returns whether there is something to feed."""
        try:
            return self._begin(call)
        except SpecdecError as refusal:
            call.fail(refusal)
        except Exception as error:
            _logger.exception("a work could not begin")
            call.fail(error)
        return False

    def _begin(self, call: Call) -> bool:
        prefix = call.work.prefix
        call.session = session = self.caches.get(call.session_id)
        session.check(prefix)
        self._check_tokens(prefix.tokens, prefix.base_length, "prefix.tokens")
        committed = [*session.tokens[: prefix.start], *prefix.tokens]
        if session.used_at and not session.released:
            self._gathering.rested(time.monotonic() - session.used_at - call.waited_seconds)
        self.ahead.meet(session, call.work, committed)
        first = call.work.begin(committed)
        # A work that is done without a pass has its committed tokens known from now on; room is theirs all the same.
        # What has been fed behind them stays as it is.
        feed = first if isinstance(first, Feed) else Feed(session.tokens[prefix.base_length :], 0)
        self._check_feed(feed, prefix.base_length)
        self.caches.reserve(session, prefix.base_length + max(len(feed.tokens), call.work.reach))
        session.released = False
        call.reused_length = min(session.align(prefix.start, [*prefix.tokens, *feed.tokens]), prefix.base_length)
        if isinstance(first, Done):
            call.answer(first)
            self.caches.rest(session)
            self.ahead.expect(session, first.outlook)
            return False
        session.running = True
        session.leave(feed.rows)
        call.rows = feed.rows
        return True

    def _run_pass(self) -> None:
        shares = share_tokens([call.session.pending for call in self.running], self._max_batch_tokens)
        batch = [(call, count) for call, count in zip(self.running, shares, strict=True) if count]
        self.running = [call for call, count in zip(self.running, shares, strict=True) if not count]
        fed_tokens = sum(shares)
        for call, count in batch:
            call.enter_pass(count, len(batch), fed_tokens)
        self.passes += 1
        self.fed_tokens += fed_tokens
        started = time.monotonic()
        try:
            whole, outcomes = self._compute(batch)
        except Exception as error:
            _logger.exception("a forward pass failed")
            self.failed_passes += 1
            self._fail_pass([call for call, _ in batch], type(error).__name__)
            return
        self.failed_passes = 0
        self._gathering.passed(len(batch), fed_tokens, time.monotonic() - started)
        ended = {call for call, outcome in zip(whole, outcomes, strict=True) if not self._apply(call, outcome)}
        self.running += [call for call, _ in batch if call not in ended]

    def _compute(self, batch: Sequence[tuple[Call, int]]) -> tuple[list[Call], list[Outcome]]:
        """Run one forward pass. Returns the calls that are wholly fed, and how each goes on."""
        with _forward_span(batch):
            clock = PassClock(self._model.device)
            logits = self._model.forward([call.segment(count) for call, count in batch])
            clock.forwarded()
            for (call, _), part in zip(batch, logits, strict=True):
                call.parts.append(part)
            whole = [call for call, _ in batch if not call.session.pending]
            outcomes = self._advance([(call.work, call.take_rows()) for call in whole]) if whole else []
            if len(outcomes) != len(whole):
                raise ValueError(f"{len(whole)} works were advanced and {len(outcomes)} outcomes came back")
            forward_seconds, sampling_seconds = clock.stop()
        for call, _ in batch:
            call.forward_seconds += forward_seconds
        for call in whole:
            call.sampling_seconds += sampling_seconds
        return whole, outcomes

    def _apply(self, call: Call, outcome: Outcome) -> bool:
        """Do what a work decided. Returns whether it feeds on."""
        try:
            if isinstance(outcome, Feed):
                self._feed_on(call, outcome)
                return True
            if isinstance(outcome, SpecdecError):
                raise outcome
            call.answer(outcome)
        except NumericalFailure as failure:
            self.caches.drop(call.session_id)  # what gave such numbers must not be continued
            call.fail(failure)
        except SpecdecError as refusal:
            call.fail(refusal)
        except Exception as error:
            _logger.exception("a work could not go on")
            call.fail(error)
        self._end(call)
        if isinstance(outcome, Done):
            self.ahead.expect(call.session, outcome.outlook)
        return False

    def _feed_on(self, call: Call, feed: Feed) -> None:
        session = call.session
        self._check_feed(feed, len(session.tokens))
        self.caches.reserve(session, len(session.tokens) + len(feed.tokens))
        session.tokens += feed.tokens
        session.leave(feed.rows)
        call.rows = feed.rows

    def _fail_pass(self, calls: Sequence[Call], cause: str) -> None:
        for call in calls:
            done = call.work.cut_short()
            if done is not None:
                call.answer(done)
            else:
                self.caches.drop(call.session_id)
                # Neither chained nor shared: a traceback would keep the dropped caches alive.
                call.fail(SpecdecError(f"the forward pass that served this call failed: {cause}"))
            self._end(call)

    def _end(self, call: Call) -> None:
        call.session.abandon()
        self.caches.rest(call.session)

    def _check_feed(self, feed: Feed, length: int) -> None:
        length += len(feed.tokens)
        self._check_tokens(feed.tokens, length, "proposal.draft_tokens")
        if not 0 <= feed.rows <= length:
            raise ValueError(f"{feed.rows} rows of {length} tokens")

    def _check_tokens(self, tokens: Sequence[int], length: int, field: str) -> None:
        """Check ids here, before a device asserts on one and takes every session with it."""
        context, size = self._model.context_length, self._model.vocabulary_size
        if not 1 <= length <= context:
            raise InvalidParameter(f"{length} tokens do not fit a context of 1 to {context}", field=field)
        if tokens and not 0 <= min(tokens) <= max(tokens) < size:
            raise InvalidParameter(f"a token id is not below {size}", field=field)


@contextmanager
def _forward_span(batch: Sequence[tuple[Call, int]]) -> Iterator[None]:
    """Span one batched pass: it has many causes, so it links to its callers' spans and is the child of none."""
    links = [Link(call.span) for call, _ in batch if call.span.is_valid and call.span.trace_flags.sampled]
    if not links:
        yield
        return
    sizes = {names.BATCH_SIZE: len(batch), names.FED_TOKENS: sum(count for _, count in batch)}
    span = _tracer.start_span(names.SPAN_FORWARD, Context(), SpanKind.INTERNAL, sizes, links)
    with trace.use_span(span, end_on_exit=True):
        yield
