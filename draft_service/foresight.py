"""Drafting ahead: what the next Propose of a session may stand on, drafted while the target verifies.

A draft ahead is an ordinary draft that stands on the committed tokens of the call it foresees. So it draws what that
call would draw, under the same round's draws, and the call that comes takes over its tokens or starts anew. How likely
an outcome is decides only what is worth drafting.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from prometheus_client import CollectorRegistry, Counter

from draft_service.ahead import Prospective, full_accepts, likeliest, rejections
from draft_service.drafting import Draft
from specdec.model.work import Done, Feed, Fork

RANKED = 16  # tokens of a place that may be drafted ahead from


class Foresight:
    """What all sessions' drafts ahead have in common; used on the engine's thread.

    Attributes:
        most: calls of one session that are foreseen at most.
        drafted: counts tokens drafted ahead.
    """

    def __init__(self, most: int, registry: CollectorRegistry) -> None:
        """Start without experience, with counters at 0."""
        self.most = most
        self.drafted = Counter("specdec_ahead_tokens", "Draft tokens drafted ahead of their call.", registry=registry)
        self._used = Counter("specdec_ahead_used", "Draft tokens of them that a call took over.", registry=registry)
        self._hits = Counter("specdec_ahead_hits", "Calls that found draft tokens of theirs there.", registry=registry)
        self._misses = Counter("specdec_ahead_misses", "Calls that found those of others alone.", registry=registry)

    def count(self, used: int) -> None:
        """Count a call for whose session something had been drafted ahead, ``used`` tokens of its own."""
        (self._hits if used else self._misses).inc()
        self._used.inc(used)


@dataclass(slots=True, kw_only=True)
class RankedDraft(Draft):
    """A draft that remembers which tokens were likely at each place.

    Attributes:
        foresight: of the service.
    """

    foresight: Foresight

    @property
    def graded(self) -> bool:
        """It always matters how likely draft tokens are to stand."""
        return True

    @property
    def ranked(self) -> int:
        """How many tokens of a place are to be remembered."""
        return RANKED


@dataclass(slots=True, kw_only=True)
class DraftAhead(RankedDraft):
    """A draft for a call that has not come."""

    def take(self, token: int, token_ids: Sequence[int], probabilities: Sequence[float]) -> Feed | Done:
        """Count and add a drawn token."""
        self.foresight.drafted.inc()
        return Draft.take(self, token, token_ids, probabilities)


@dataclass(slots=True, kw_only=True)
class FullAccept(RankedDraft):
    """Looks at the place behind all draft tokens of a call, to see what may come there.

    Attributes:
        call: whose draft tokens they are.
        standing: how likely it is that all of them stand.
    """

    call: "ForesightedDraft"
    standing: float

    def take(self, token: int, token_ids: Sequence[int], probabilities: Sequence[float]) -> Done:  # noqa: ARG002
        """End with what may come there."""
        ways = [] if self.guessed else full_accepts(self.call.gamma, self.rankings[0], self.standing)
        return Done(None, keep=0, committed=0, outlook=AfterFullAccept(self.call, ways=ways))


@dataclass(slots=True, kw_only=True)
class ForesightedDraft(RankedDraft):
    """A draft that begins with what has been drafted ahead for it, and says what may come after it.

    Attributes:
        ahead_tokens: draft tokens that were there when the call came; None: nothing had been drafted ahead.
    """

    ahead_tokens: int | None = None

    def begin(self, committed: list[int]) -> Feed | Done:
        """Ask for the logits that follow what is there, or be done at once."""
        self.start(committed)
        return self.done() if self.draft_tokens and self.ended else Feed(list(self.draft_tokens), 1)

    def done(self) -> Done:
        """End the proposal, with an outlook on the next one."""
        done = Draft.done(self)
        return done if self.guessed or not self.draft_tokens else replace(done, outlook=NextCall(self))

    def resume(self, ahead: Draft) -> bool:
        """Take over what a draft ahead has, if it is for this very call. Returns whether that is anything."""
        same = (
            ahead.params == self.params
            and ahead.verification is self.verification
            and ahead.prefix.prompt_length == self.prefix.prompt_length
            and ahead.prefix.fence == self.prefix.fence
        )
        if same and not ahead.guessed:
            while len(self.draft_tokens) < len(ahead.draft_tokens) and not self.ended:
                self.stop.add(ahead.stop.grades[len(self.draft_tokens)])
                self.draft_tokens.append(ahead.draft_tokens[len(self.draft_tokens)])
            self.draft_distributions = ahead.draft_distributions[: len(self.draft_tokens)]
            self.rankings = ahead.rankings[: len(self.draft_tokens)]
        return bool(self.draft_tokens)


@dataclass(slots=True)
class NextCall:
    """What is expected after a proposal.

    Attributes:
        call: that was answered with it.
        asked: whether anything has been drafted ahead.
    """

    call: ForesightedDraft
    asked: bool = False

    def forks(self) -> list[Fork]:
        """Return the likeliest outcomes of the round, and a look at what may come when all draft tokens stand."""
        self.asked = True
        call = self.call
        rates = [call.stop.calibration.rate(grade) for grade in call.stop.grades]
        ways = likeliest(rejections(call.draft_tokens, call.rankings, rates), call.foresight.most)
        forks = [fork for way in ways for fork in self.fork(way)]
        standing = math.prod(rates)
        stands_on = len(call.committed) + len(call.draft_tokens)
        if stands_on < call.limits.context_length:  # a token may follow them
            fields = (call.prefix, call.params, 1, call.verification, call.limits)
            look = FullAccept(*fields, foresight=call.foresight, call=call, standing=standing)
            forks.append(Fork(look, stands_on - 1, call.draft_tokens[-1:], standing))
        return forks

    def fork(self, way: Prospective) -> list[Fork]:
        """Return the call that a round's outcome leads to; none beyond the context."""
        call = self.call
        start = len(call.committed) + way.accept_index
        if start >= call.limits.context_length:
            return []
        fields = (call.prefix, call.params, call.gamma, call.verification, call.limits)
        ahead = DraftAhead(*fields, foresight=call.foresight)
        return [Fork(ahead, start, [way.next_token], way.probability)]

    def meet(self, work: ForesightedDraft, committed: Sequence[int], ahead: Draft | None) -> bool:  # noqa: ARG002
        """Let the next call begin with what is there for it."""
        resumed = ahead is not None and work.resume(ahead)
        if self.asked:
            work.ahead_tokens = len(work.draft_tokens)
            self.call.foresight.count(work.ahead_tokens)
        return resumed


@dataclass(slots=True)
class AfterFullAccept(NextCall):
    """What is expected when all draft tokens stand.

    Attributes:
        ways: how the round then ends.
    """

    ways: Sequence[Prospective] = ()

    def forks(self) -> list[Fork]:
        """Return one call an outcome."""
        return [fork for way in self.ways for fork in self.fork(way)]
