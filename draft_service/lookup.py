"""What followed before: an index of one session's own tokens, and of as many sessions as there is room for.

The index is a function of the committed tokens and of where the answer begins, so that a repeated call finds the same
and what was never committed does not count. It is kept as tokens come and cut as they go; losing it costs a rebuild.
"""

import threading
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from specdec.prefix import common_length
from specdec.proposal import SparseDistribution

LONGEST = 8  # tokens that a match is looked for over; what still differs after so many rarely goes on differently
NEWEST = 32  # occurrences that are looked at: bounds the work where a context is common, such as the end of a line


@dataclass(frozen=True, slots=True)
class Followers:
    """What followed before.

    Attributes:
        token_ids: those of the newest occurrences first, with repetition; empty where nothing matches.
        matched: how many tokens before it were the same.
    """

    token_ids: Sequence[int]
    matched: int

    def __bool__(self) -> bool:
        """Whether anything did."""
        return bool(self.token_ids)


class Places:
    """Where each n-gram of one order stood: the positions of the tokens that followed, oldest first."""

    def __init__(self, order: int) -> None:
        """Start empty; ``order`` is the number of tokens of an n-gram, at least 1."""
        self._order = order
        self._positions: dict[tuple[int, ...], list[int]] = {}

    def add(self, tokens: Sequence[int], position: int) -> None:
        """Note what stands before a position."""
        if position >= self._order:
            self._positions.setdefault(tuple(tokens[position - self._order : position]), []).append(position)

    def remove(self, tokens: Sequence[int], position: int) -> None:
        """Forget what stands before a position; the last one noted goes first."""
        if position >= self._order:
            ngram = tuple(tokens[position - self._order : position])
            positions = self._positions[ngram]
            positions.pop()
            if not positions:
                del self._positions[ngram]

    def after(self, tail: Sequence[int], start: int = 0) -> list[int]:
        """Return the newest positions, from ``start`` on, before which the end of ``tail`` stood; newest first."""
        positions = self._positions.get(tuple(tail[-self._order :]), [])
        first = max(bisect_left(positions, start), len(positions) - NEWEST)
        return positions[first:][::-1]


class Lookup:
    """One session's tokens, and what followed where.

    Attributes:
        tokens: the committed ones.
    """

    def __init__(self, shortest: int) -> None:
        """Start empty; ``shortest`` is the least number of tokens that a match has."""
        self.tokens: list[int] = []
        self._shortest = shortest
        self._prompt_length = 0
        self._matches = Places(shortest)
        self._steps = Places(1)

    def align(self, committed: Sequence[int], prompt_length: int) -> int:
        """Make the tokens these: keep what is shared, cut the rest, append what is new.

        Args:
            committed: all of them, a list.
            prompt_length: how many came before the answer.

        Returns:
            How many were shared.
        """
        shared = min(len(self.tokens), len(committed))
        if self.tokens[:shared] != committed[:shared]:  # rare; slices compare much faster than a loop over tokens
            shared = common_length(self.tokens, committed)
        for position in range(len(self.tokens) - 1, shared - 1, -1):
            self._matches.remove(self.tokens, position)
            self._steps.remove(self.tokens, position)
        self.tokens[shared:] = committed[shared:]
        for position in range(shared, len(self.tokens)):
            self._matches.add(self.tokens, position)
            self._steps.add(self.tokens, position)
        self._prompt_length = prompt_length
        return shared

    def match(self, drafted: Sequence[int]) -> Followers:
        """Return what followed the longest end of committed and drafted tokens that stood there before.

        Args:
            drafted: draft tokens so far.
        """
        tail = [*self.tokens[-LONGEST:], *drafted][-LONGEST:]
        positions, matched = self._matches.after(tail), self._shortest
        for length in range(self._shortest + 1, len(tail) + 1):
            longer = [at for at in positions if at >= length and self.tokens[at - length] == tail[-length]]
            if not longer:
                break
            positions, matched = longer, length
        return Followers([self.tokens[at] for at in positions], matched)

    def step(self, drafted: Sequence[int]) -> Followers:
        """Return what followed the last token elsewhere in the answer: tokens that the target has chosen."""
        tail = drafted[-1:] or self.tokens[-1:]
        return Followers([self.tokens[at] for at in self._steps.after(tail, self._prompt_length)], 1)


class Lookups:
    """The lookups of all sessions, least recently used first. Losing one costs a rebuild.

    One thread aligns and looks up; any thread may drop.
    """

    def __init__(self, shortest: int, max_sessions: int, max_tokens: int) -> None:
        """Start empty.

        Args:
            shortest: the least number of tokens that a match has.
            max_sessions: lookups at most.
            max_tokens: of all lookups together; the one in use stays whatever it holds.
        """
        self._shortest = shortest
        self._max_sessions = max_sessions
        self._max_tokens = max_tokens
        self._lookups: dict[str, Lookup] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._lookups)

    def aligned(self, session_id: str, committed: Sequence[int], prompt_length: int) -> Lookup:
        """Return the session's lookup with exactly these tokens; others make room."""
        with self._lock:
            lookup = self._lookups.pop(session_id, None) or Lookup(self._shortest)
            self._make_room(len(committed))
            self._lookups[session_id] = lookup
        lookup.align(committed, prompt_length)
        return lookup

    def drop(self, session_id: str) -> None:
        """Free a session's lookup, if there is one."""
        with self._lock:
            self._lookups.pop(session_id, None)

    def _make_room(self, length: int) -> None:
        held = length + sum(len(lookup.tokens) for lookup in self._lookups.values())
        for session_id in list(self._lookups):
            if len(self._lookups) < self._max_sessions and held <= self._max_tokens:
                break
            held -= len(self._lookups.pop(session_id).tokens)


def distribution_of(followers: Sequence[int], support_size: int, *, greedy: bool) -> SparseDistribution:
    """Turn what followed into what a draft token is drawn from: the share of each, likeliest first.

    Args:
        followers: token ids, newest first, at least one; of two that are as frequent the newer one leads.
        support_size: entries at most (k).
        greedy: the likeliest alone, with certainty.
    """
    token_ids, counts = zip(*Counter(followers).most_common(1 if greedy else support_size), strict=True)
    total = sum(counts)
    return SparseDistribution(token_ids, tuple(array("f", [count / total for count in counts])))
