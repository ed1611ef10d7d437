"""What followed each token in the answers of all sessions together; used only where a setting asks for it: it leaks.

Exactness. With TOKEN and BLOCK a proposal must not depend on draws that its own round is going to use, and a draw is a
function of the seed and of the round's base_length. Sessions may have the same seed, and one that ran ahead, or an
earlier life of the same one, has put into the table what those very draws have chosen. So the table knows, for each
seed, the length up to which tokens of it have been learnt: they come from rounds of a smaller base_length, and a round
at that length or beyond has draws of its own. A round below it neither teaches the table nor uses it. What is asked
again may find more than before: with this setting a seed repeats a text with COUPLED alone. This holds for one table:
what another replica drew under the same seed gets in where a session quotes it.
"""

from collections import deque
from collections.abc import Sequence

NEWEST = 16  # tokens remembered after each
ENTRIES = 2**16  # tokens, and seeds, that are known at most: some 50 MiB


class SharedSteps:
    """A table of likely next tokens; for one thread.

    Bounded by forgetting: when there are too many tokens or seeds, all of both go. A seed must not be forgotten while
    the table holds what was learnt under it.
    """

    def __init__(self, entries: int = ENTRIES) -> None:
        """Start empty; ``entries`` bounds the tokens and the seeds that are known."""
        self._entries = entries
        self._followers: dict[int, deque[int]] = {}
        self._learnt: dict[int, int] = {}  # by seed: the length up to which tokens are in the table

    def learn(self, seed: int, committed: Sequence[int], prompt_length: int) -> None:
        """Take in the tokens of an answer that are new under its seed."""
        start = max(prompt_length, self._learnt.get(seed, 0))
        if start >= len(committed):
            return
        for position in range(start, len(committed)):
            self._followers.setdefault(committed[position - 1], deque(maxlen=NEWEST)).append(committed[position])
        self._learnt[seed] = len(committed)
        if max(len(self._followers), len(self._learnt)) > self._entries:
            self._followers.clear()
            self._learnt.clear()

    def open_to(self, seed: int, base_length: int) -> bool:
        """Whether the table is independent of the draws of the seed's round at this length."""
        return self._learnt.get(seed, 0) <= base_length

    def after(self, token: int) -> list[int]:
        """Return what followed a token, newest first."""
        return [*reversed(self._followers.get(token, ()))]
