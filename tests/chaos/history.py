"""What was seen while things broke: requests as their clients saw them, streams as they passed, what is stored."""

from dataclasses import dataclass, field

OK = "OK"


@dataclass(slots=True)
class Request:
    """One request as the client's own code answered it, resumptions included.

    Attributes:
        session_id: the session.
        turn: which answer of the session, from 0.
        ask: name of what was asked.
        prompt_length: position of the answer's first token in the session.
        began: seconds on the run's clock.
        ended: seconds on the run's clock.
        tokens: shown.
        text: shown.
        finishes: events with a finish reason.
        after_finish: events after the first of them.
        outcome: OK, or the status that it failed with.
        reason: of a failure, as the service names it.
        resumptions: streams beyond the first.
        repeated: whether it was made again after one of which nothing was shown, so that it may have begun before.
    """

    session_id: str
    turn: int
    ask: str
    prompt_length: int
    began: float
    ended: float = 0.0
    tokens: list[int] = field(default_factory=list)
    text: str = ""
    finishes: int = 0
    after_finish: int = 0
    outcome: str = ""
    reason: str = ""
    resumptions: int = 0
    repeated: bool = False


@dataclass(slots=True)
class Stream:
    """One stream of events as it passed between a coordinator and a client.

    Attributes:
        session_id: the session.
        prompt_length: position of the answer's first token in the session.
        shown: (index within the answer, token ids) of each event.
        finishes: events with a finish reason.
        after_finish: events after the first of them.
        status: it ended with; empty while it has not.
        reason: the service's, where it gave one.
    """

    session_id: str
    prompt_length: int
    shown: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)
    finishes: int = 0
    after_finish: int = 0
    status: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Stored:
    """A session as the system has it at the end.

    Attributes:
        token_ids: all committed tokens.
        prompt_length: committed tokens before the latest answer.
        text: of the latest answer.
    """

    token_ids: tuple[int, ...]
    prompt_length: int
    text: str


@dataclass(frozen=True, slots=True)
class Answer:
    """What an undisturbed system answers."""

    tokens: tuple[int, ...]
    text: str


@dataclass(slots=True)
class History:
    """Everything that was seen.

    Attributes:
        expected: undisturbed answers, by name of what was asked and turn; what is not here may differ.
        requests: in the order of their ends.
        streams: in the order of their beginnings.
        stored: sessions at the end, by id.
        losses: when Redis lost what it held, seconds on the run's clock.
        rolling: begin and end of rolling restarts.
        seen_wrong: what was found wrong at once.
    """

    expected: dict[tuple[str, int], Answer] = field(default_factory=dict)
    requests: list[Request] = field(default_factory=list)
    streams: list[Stream] = field(default_factory=list)
    stored: dict[str, Stored] = field(default_factory=dict)
    losses: list[float] = field(default_factory=list)
    rolling: list[tuple[float, float]] = field(default_factory=list)
    seen_wrong: list[str] = field(default_factory=list)

    def turns(self) -> dict[tuple[str, int], list[Request]]:
        """Return the requests of each answer, in order: the first, then those that took it up again."""
        found: dict[tuple[str, int], list[Request]] = {}
        for request in self.requests:
            found.setdefault((request.session_id, request.turn), []).append(request)
        return found

    def lost(self) -> set[str]:
        """Return the sessions that were there, or being made, when Redis lost what it held."""
        last = max(self.losses, default=float("-inf"))
        return {request.session_id for request in self.requests if request.began <= last}
