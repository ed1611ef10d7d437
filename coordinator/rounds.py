"""What the parties of a round hand each other, as plain values.

The proposal, log-probabilities and server timings are messages that pass through untouched: ``Any`` here, because the
loop looks at none of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from coordinator.session import FinishReason, Session, TokenSource, Usage


class Fallback(IntEnum):
    """Why a round that could have speculated did not; numbered like ``specdec.v1.FallbackReason``."""

    DRAFT_UNAVAILABLE = 1
    DRAFT_OVERLOADED = 2
    DRAFT_CONTEXT = 3
    INVALID_PROPOSAL = 4


@dataclass(frozen=True, slots=True)
class Drafted:
    """What came of asking the draft.

    Attributes:
        draft_tokens: [gamma] ids.
        proposal: the message as it came, None for the empty proposal.
        fallback: why there are no draft tokens although some were wanted.
        asked: draft tokens that the draft was asked for, within its context.
        reused_length: committed tokens that it held when it was asked.
        seconds: what the call took, 0 without one.
        timings: where the time went inside the draft server, or None.
    """

    draft_tokens: Sequence[int] = ()
    proposal: Any = None
    fallback: Fallback | None = None
    asked: int = 0
    reused_length: int = 0
    seconds: float = 0.0
    timings: Any = None

    @property
    def gamma(self) -> int:
        """Number of draft tokens."""
        return len(self.draft_tokens)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the target decided.

    Attributes:
        accept_index: draft tokens kept.
        next_token: the target's own token.
        reused_length: committed tokens it had in its cache.
        logprobs: one message a token of the round when asked for, else empty.
        residual_zero: the residual had no mass, and the target's own distribution was used.
        seconds: what the call took.
        pass_seconds: what the target's passes took that served the call, with verifying all that were in them.
        pass_tokens: tokens in them, of all sessions.
        timings: where the time went inside the target server, or None.
    """

    accept_index: int
    next_token: int
    reused_length: int
    logprobs: Sequence[Any] = ()
    residual_zero: bool = False
    seconds: float = 0.0
    pass_seconds: float = 0.0
    pass_tokens: int = 1
    timings: Any = None


def worked_seconds(timings: Any) -> float:
    """Return what passes took that served a call, with choosing tokens after them: all in a pass wait for both."""
    seconds: float = (timings.forward.ToTimedelta() + timings.sampling.ToTimedelta()).total_seconds()
    return seconds


@dataclass(frozen=True, slots=True)
class Round:
    """One propose–verify cycle.

    Attributes:
        number: counts from 0 within the answer.
        base_length: committed tokens before it.
        drafted: what was verified.
        verdict: what became of it.
    """

    number: int
    base_length: int
    drafted: Drafted
    verdict: Verdict

    @property
    def block(self) -> list[int]:
        """The tokens it would commit if nothing ended the answer."""
        return [*self.drafted.draft_tokens[: self.verdict.accept_index], self.verdict.next_token]

    @property
    def sources(self) -> list[TokenSource]:
        """Where each of the block's tokens comes from."""
        kept, gamma = self.verdict.accept_index, self.drafted.gamma
        if not gamma:
            return [TokenSource.TARGET_ONLY]
        return [TokenSource.ACCEPTED] * kept + [TokenSource.BONUS if kept == gamma else TokenSource.CORRECTION]


@dataclass(frozen=True, slots=True)
class Ending:
    """How an answer ended.

    Attributes:
        reason: why.
        matched_stop: the stop string or the text of the stop token, None for LENGTH.
        usage: counts of the answer.
        session_length: committed tokens of the session.
    """

    reason: FinishReason
    matched_stop: str | None
    usage: Usage
    session_length: int


@dataclass(frozen=True, slots=True)
class Event:
    """What the reader of an answer is shown at once.

    Attributes:
        index: of the first token within the answer.
        token_ids: committed tokens.
        texts: one a token, what became certain with it; a single one that follows when there are no tokens.
        sources: one a token.
        logprobs: one message a token, or empty.
        round: what made the tokens, None when they are repeated.
        ending: in the last event alone.
        commit_seconds: what it took to commit the tokens, with all that was tried again.
    """

    index: int
    token_ids: Sequence[int]
    texts: Sequence[str]
    sources: Sequence[TokenSource]
    logprobs: Sequence[Any] = ()
    round: Round | None = None
    ending: Ending | None = None
    commit_seconds: float = 0.0


def count(session: Session, round_: Round, emitted: int) -> None:
    """Count a round of which ``emitted`` tokens were committed: what a stop has cut off does not count."""
    usage, gamma = session.usage, round_.drafted.gamma
    if usage.rounds == 0:
        usage.cached_tokens = min(round_.verdict.reused_length, session.prompt_length)
    usage.rounds += 1
    usage.completion_tokens += emitted
    if not gamma:
        return
    accepted = min(round_.verdict.accept_index, emitted)
    usage.spec_rounds += 1
    usage.spec_draft_tokens += gamma
    usage.spec_accepted_tokens += accepted
    usage.accepted_per_position.extend([0] * (gamma - len(usage.accepted_per_position)))
    for position in range(accepted):
        usage.accepted_per_position[position] += 1
