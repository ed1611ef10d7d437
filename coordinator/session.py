"""A session as the coordinator sees it: committed tokens, the latest answer's parameters and its counts."""

from dataclasses import dataclass, field
from enum import IntEnum

from specdec.fence import Fence
from specdec.parameters import DEFAULT_VERIFICATION, SamplingParams, Verification


class TokenSource(IntEnum):
    """Where a committed token came from; one byte a token in the store."""

    PROMPT = 0
    ACCEPTED = 1
    CORRECTION = 2
    BONUS = 3
    TARGET_ONLY = 4


class FinishReason(IntEnum):
    """Why an answer ended."""

    STOP = 1
    LENGTH = 2


class SessionState(IntEnum):
    """Whether a session is being worked on."""

    RUNNING = 1
    FINISHED = 2
    INTERRUPTED = 3


@dataclass(frozen=True, slots=True)
class Speculation:
    """How an answer speculates.

    Attributes:
        gamma: draft tokens a round, 0 for off, None for the policy's choice.
        verification: how they are verified.
    """

    gamma: int | None = None
    verification: Verification = DEFAULT_VERIFICATION


@dataclass(slots=True)
class Usage:
    """Counts of one answer; each counts what was emitted, after any stop cut the round."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    rounds: int = 0
    spec_rounds: int = 0
    spec_draft_tokens: int = 0
    spec_accepted_tokens: int = 0
    accepted_per_position: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Session:
    """What the store holds of a session, and what its running coordinator knows.

    Attributes:
        session_id: the client's or a random one.
        principal: who made it; empty without authentication.
        fence: the claim this copy was read or taken under.
        tokens: committed token ids, prompts and answers.
        sources: one TokenSource a token.
        prompt_length: committed tokens before the latest answer.
        params: resolved parameters of the latest answer.
        speculation: how the latest answer speculates.
        model_fingerprint: of the target that made it.
        replicas: service name ("draft", "target") to the address whose cache is warm.
        state: whether it is being worked on.
        usage: counts of the latest answer.
        finish_reason: of the latest answer; None while it is not complete.
        matched_stop: the stop that ended it, or None.
        stored_length: committed tokens that the store has acknowledged to this copy.
        deadline: when the client of the running answer will have gone; see ``coordinator.deadline``.
    """

    session_id: str
    principal: str
    fence: Fence
    tokens: list[int]
    sources: bytearray
    prompt_length: int
    params: SamplingParams
    speculation: Speculation
    model_fingerprint: str
    replicas: dict[str, str] = field(default_factory=dict)
    state: SessionState = SessionState.RUNNING
    usage: Usage = field(default_factory=Usage)
    finish_reason: FinishReason | None = None
    matched_stop: str | None = None
    stored_length: int = field(default=0, compare=False)
    deadline: float | None = field(default=None, compare=False)

    @property
    def length(self) -> int:
        """Number of committed tokens."""
        return len(self.tokens)

    @property
    def answer(self) -> list[int]:
        """Committed tokens of the latest answer."""
        return self.tokens[self.prompt_length :]
