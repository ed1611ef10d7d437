"""What an answer took and what speculation gained, counted as the events arrive."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from specdec.v1 import generation_pb2 as v1


@dataclass(slots=True)
class Measurement:
    """Counts of one answer, or of several together.

    A resumed stream repeats committed tokens without the rounds that made them; the final usage makes that good for all
    counts but ``fallback_rounds``, which holds what was seen.

    Attributes:
        answers: how many were measured.
        tokens: of the answer.
        rounds: propose-verify cycles.
        draft_tokens: verified.
        accepted_tokens: draft tokens kept and emitted.
        fallback_rounds: rounds that should have had draft tokens and had none.
        first_token_seconds: from the request to the first token, summed over the answers.
        seconds: from the request to the last event, summed over the answers.
        finish: why the answer ended; empty while it has not.
        text: of the answer.
        session_length: committed tokens of the session after the answer; None when the answer has not ended.
    """

    answers: int = 1
    tokens: int = 0
    rounds: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    fallback_rounds: int = 0
    first_token_seconds: float = 0.0
    seconds: float = 0.0
    finish: str = ""
    text: str = ""
    session_length: int | None = None
    clock: Callable[[], float] = field(default=time.monotonic, repr=False)
    started: float = field(default=0.0, repr=False)

    def start(self) -> "Measurement":
        """Take the time of the request."""
        self.started = self.clock()
        return self

    def take(self, event: v1.GenerateResponse) -> None:
        """Count an event that just arrived."""
        self.seconds = self.clock() - self.started
        if event.token_ids and not self.tokens:
            self.first_token_seconds = self.seconds
        self.tokens += len(event.token_ids)
        self.text += event.text
        if event.HasField("round"):
            self.rounds += 1
            self.draft_tokens += event.round.gamma
            self.accepted_tokens += sum(source == v1.TOKEN_SOURCE_ACCEPTED for source in event.sources)
            self.fallback_rounds += event.round.fallback != v1.FALLBACK_REASON_UNSPECIFIED
        if event.finish_reason:
            self._finish(event)

    def _finish(self, event: v1.GenerateResponse) -> None:
        self.finish = v1.FinishReason.Name(event.finish_reason).removeprefix("FINISH_REASON_").lower()
        if event.HasField("matched_stop"):
            self.finish += f" {event.matched_stop!r}"
        if event.HasField("session_length"):
            self.session_length = event.session_length
        if event.HasField("usage"):
            self.rounds = event.usage.rounds
            self.draft_tokens = event.usage.spec_draft_tokens
            self.accepted_tokens = event.usage.spec_accepted_tokens

    @property
    def tokens_a_second(self) -> float:
        """Tokens over the whole time, the wait for the first one included; 0 when nothing arrived."""
        return self.tokens / self.seconds if self.seconds else 0.0

    def rows(self) -> list[tuple[str, str]]:
        """Say everything as (name, value) for a table."""
        return [
            ("rounds", str(self.rounds)),
            ("draft tokens", str(self.draft_tokens)),
            ("acceptance", f"{self.accepted_tokens / self.draft_tokens:.1%}" if self.draft_tokens else "-"),
            ("tokens a round", f"{self.tokens / self.rounds:.2f}" if self.rounds else "-"),
            ("fallback rounds", str(self.fallback_rounds)),
            ("time to first token", f"{1000 * self.first_token_seconds / self.answers:.0f} ms"),
            ("tokens a second", f"{self.tokens_a_second:.1f}"),
            ("tokens", str(self.tokens)),
            ("finish reason", self.finish or "not finished"),
        ]


def together(measurements: Sequence[Measurement]) -> Measurement:
    """Add the answers of a conversation up, at least one; in the rows the time to the first token is their mean."""
    total = Measurement(answers=len(measurements), finish=measurements[-1].finish)
    for one in measurements:
        for name in _ADDED:
            setattr(total, name, getattr(total, name) + getattr(one, name))
    return total


_ADDED = ("tokens", "rounds", "draft_tokens", "accepted_tokens", "fallback_rounds", "first_token_seconds", "seconds")
