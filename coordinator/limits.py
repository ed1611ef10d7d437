"""How much one client may do, so that it costs nobody else anything, and how many answers may run in all.

Each coordinator counts for itself, before any work.
"""

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice

from specdec.errors import ClientLimit, QueueFull

RETRY_ANSWER_SECONDS = 1.0  # nobody knows when one of the running answers ends
_LOOKED_AT = 2  # clients for each call: more than one can come with it, so that those that are gone are all found


class ClientLimits:
    """Counts what each client does."""

    def __init__(
        self,
        *,
        answers: int,
        calls: int,
        tokens: int,
        answers_in_all: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin to count. Every 0 is no limit.

        Args:
            answers: of one client, running at once.
            calls: of one client a minute.
            tokens: of one client's answers a minute.
            answers_in_all: of all clients, running at once.
            clock: seconds from any origin.
        """
        self._answers = answers or math.inf
        self._calls = calls or math.inf
        self._tokens = tokens or math.inf
        self._answers_in_all = answers_in_all or math.inf
        self._running = 0
        self._clock = clock
        self._clients: dict[str, _Client] = {}

    def __len__(self) -> int:
        """Return how many clients are remembered."""
        return len(self._clients)

    def count_call(self, client: str) -> None:
        """Count a call.

        Raises:
            ClientLimit: there were too many within a minute.
        """
        calls = self._client(client).calls
        self._check(calls, "calls")
        calls.spend(1, self._clock())

    @contextmanager
    def answering(self, client: str, session_id: str) -> Iterator[Callable[[int], None]]:
        """Count an answer for as long as it runs; what is given counts its tokens.

        Args:
            client: who asks.
            session_id: as it was asked for, empty for a new one. The second call of a session that is being answered
                does not count, others do: a client that lost a stream resumes before the server knows of the loss.

        Raises:
            ClientLimit: as many are running, or earlier ones have had too many tokens within a minute.
            QueueFull: as many answers are running in all.
        """
        counted = self._client(client)
        self._check(counted.tokens, "tokens")
        answer = session_id or object()
        if counted.running[answer] != 1:
            self._check_answers(counted.answers)
            self._count(counted, 1)
        counted.running[answer] += 1
        try:
            yield lambda tokens: counted.tokens.spend(tokens, self._clock())
        finally:
            counted.running[answer] -= 1
            if counted.running[answer] != 1:
                self._count(counted, -1)
            if not counted.running[answer]:
                del counted.running[answer]

    def _count(self, client: "_Client", answers: int) -> None:
        client.answers += answers
        self._running += answers

    def _check_answers(self, running: int) -> None:
        if running >= self._answers:
            raise ClientLimit(f"no more than {self._answers} answers at once", retry_seconds=RETRY_ANSWER_SECONDS)
        if self._running >= self._answers_in_all:
            raise QueueFull("too many answers are running", retry_seconds=RETRY_ANSWER_SECONDS)

    def _check(self, allowance: "_Allowance", what: str) -> None:
        seconds = allowance.seconds_until_one(self._clock())
        if seconds > 0:
            raise ClientLimit(f"no more than {allowance.per_minute} {what} a minute", retry_seconds=seconds)

    def _client(self, name: str) -> "_Client":
        now = self._clock()
        for each in list(islice(self._clients, _LOOKED_AT)):
            known = self._clients.pop(each)
            if not known.forgettable(now):
                self._clients[each] = known
        if name not in self._clients:
            self._clients[name] = _Client(_Allowance(self._calls, now), _Allowance(self._tokens, now))
        return self._clients[name]


class _Allowance:
    """So much a minute, all of it at once if it must be; more may be spent than is there, and is then waited for.

    Attributes:
        per_minute: how much.
    """

    def __init__(self, per_minute: float, now: float) -> None:
        self.per_minute = per_minute
        self._left = per_minute
        self._at = now

    def spend(self, amount: int, now: float) -> None:
        self._left = self._left_at(now) - amount
        self._at = now

    def seconds_until_one(self, now: float) -> float:
        left = self._left_at(now)
        return 0.0 if left >= 1 else (1 - left) * 60 / self.per_minute

    def is_whole(self, now: float) -> bool:
        return self._left_at(now) >= self.per_minute

    def _left_at(self, now: float) -> float:
        return min(self.per_minute, self._left + (now - self._at) * self.per_minute / 60)


@dataclass(slots=True)
class _Client:
    """What is counted of one client: ``running`` are the calls of each session, ``answers`` those that count."""

    calls: _Allowance
    tokens: _Allowance
    running: Counter[object] = field(default_factory=Counter)
    answers: int = 0

    def forgettable(self, now: float) -> bool:
        """Whether it is as if it had never called."""
        return not self.running and self.calls.is_whole(now) and self.tokens.is_whole(now)
