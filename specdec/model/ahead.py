"""Idle time put to use: likely next calls of sessions that rest go on as branches of their caches.

Nothing here decides what a call gets. A call that was foreseen finds the same tokens fed and the same draws made as if
it had come at once; any other finds what it would have found without.
"""

import heapq
import logging
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from specdec.errors import SpecdecError
from specdec.model.language_model import LanguageModel
from specdec.model.prospect import Branch, Prospect, next_tokens
from specdec.model.rest_times import RestTimes
from specdec.model.session_cache import SessionCache
from specdec.model.session_caches import SessionCaches
from specdec.model.work import Advance, Feed, Outcome, Outlook

GIVES_UP_AFTER = 3  # failed passes in a row

_logger = logging.getLogger(__name__)


class Ahead:
    """Feeds branches of resting sessions, likeliest first; for the engine's thread, when no call runs or waits.

    Attributes:
        passes: forward passes so far.
        fed_tokens: tokens fed by them.
        failed_passes: passes that raised so far.
    """

    def __init__(self, model: LanguageModel, advance: Advance, caches: SessionCaches, tokens: int) -> None:
        """Start with nothing expected.

        Args:
            model: feeds branches.
            advance: decides how their works go on.
            caches: of all sessions.
            tokens: of one pass at most, and likely calls of one session at most; 0: nothing is ever expected.
        """
        self._model = model
        self._advance = advance
        self._caches = caches
        self._most = tokens
        self._failures_in_a_row = 0
        self._times = RestTimes()
        self.passes = 0
        self.fed_tokens = 0
        self.failed_passes = 0

    @property
    def pending(self) -> bool:
        """Whether there is something to do with idle time."""
        return any(prospect.unfinished for _, prospect in self._prospects())

    @property
    def quiet_seconds(self) -> float:
        """How long to wait before that, because a call is due."""
        return self._times.quiet_seconds

    def expect(self, session: SessionCache, outlook: Outlook | None) -> None:
        """Note what a session that rests from now on may be asked next."""
        session.prospect = Prospect(outlook) if outlook and self._most else None

    def meet(self, session: SessionCache, work: Any, committed: list[int]) -> None:
        """Let a call of the session go on from the branch that foresaw it, and forget all others."""
        prospect = session.prospect
        if prospect is None:
            return
        self._times.rested(time.monotonic() - session.used_at)
        branch = prospect.foreseen(session.tokens, committed)
        if prospect.outlook.meet(work, committed, branch.work if branch else None) and branch:
            session.adopt(branch)
        else:
            session.look_away()

    def run_pass(self) -> None:
        """Feed the next token of the likeliest branches, unless a call is due that this would delay for too little.

        A failure is nobody's but is logged and counted.
        """
        try:
            self._run_pass()
            self._failures_in_a_row = 0
        except Exception:
            self.failed_passes += 1
            self._failures_in_a_row += 1
            gives_up = self._failures_in_a_row == GIVES_UP_AFTER
            _logger.exception("a pass ahead failed%s", "; nothing is done ahead from now on" if gives_up else "")
            self._most = 0 if gives_up else self._most
            for session, _ in list(self._prospects()):
                session.look_away()

    def _prospects(self) -> Iterator[tuple[SessionCache, Prospect]]:
        return ((session, session.prospect) for session in self._caches if session.prospect)

    def _run_pass(self) -> None:
        likeliest = self._choose()
        likelihood = sum(branch.weight for branches in likeliest.values() for branch in branches)
        resting_since = [session.used_at for session, _ in self._prospects()]
        if not (likeliest and self._times.worth_a_pass(likelihood, resting_since)):
            return
        parts = [(session, branches) for session, branches in likeliest.items() if self._has_room(session, branches)]
        if not parts:
            return
        chosen = [(session, branch) for session, branches in parts for branch in branches]
        started = time.monotonic()
        segments = [next_tokens(session.cache, branches) for session, branches in parts]
        self.passes += 1
        self.fed_tokens += len(chosen)
        rows = torch.cat(self._model.forward(segments)).split(1)
        whole = [(*pair, row) for pair, row in zip(chosen, rows, strict=True) if not pair[1].pending]
        outcomes = self._advance([(branch.work, row) for _, branch, row in whole]) if whole else []
        for (session, branch, _), outcome in zip(whole, outcomes, strict=True):
            self._apply(session, branch, outcome)
        self._times.passed(time.monotonic() - started)

    def _choose(self) -> dict[SessionCache, list[Branch]]:
        """Return the likeliest branches that have something to feed, by session."""
        waiting = []
        for session, prospect in self._prospects():
            if not prospect.unfolded:
                prospect.unfold(session.tokens, self._most)
            waiting += [(session, branch) for branch in prospect.branches if not branch.done]
        chosen: dict[SessionCache, list[Branch]] = {}
        for session, branch in heapq.nlargest(self._most, waiting, key=lambda pair: pair[1].weight):
            chosen.setdefault(session, []).append(branch)
        return chosen

    def _has_room(self, session: SessionCache, branches: Sequence[Branch]) -> bool:
        """Take room for the branches' next tokens; a session for which there is none is left alone."""
        cache = session.cache
        if self._caches.extend(session, cache.length + len(cache.branches) + len(branches)):
            return True
        session.look_away()
        return False

    def _apply(self, session: SessionCache, branch: Branch, outcome: Outcome) -> None:
        prospect = session.prospect
        if prospect is None:
            return
        if isinstance(outcome, Feed):
            branch.tokens += outcome.tokens
        elif isinstance(outcome, SpecdecError):
            prospect.drop(branch)
        elif outcome.outlook:
            prospect.grow(branch, outcome.outlook, session.tokens, self._most)
        else:
            branch.done = True
