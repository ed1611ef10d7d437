"""How long things take by how many tokens they are about, as means of what has been seen. Pure."""

import math
from bisect import bisect
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

FORGET = 0.97  # what an observation still weighs when the next of its kind has come: about 30 of them count
OUTLIER = 3.0  # times the usual duration; what takes longer has waited for something else
EXACT = 8  # tokens up to which every number is a kind of its own
KINDS = 4  # of numbers until twice as many tokens, beyond


@dataclass(slots=True)
class Mean:
    """Of what has been seen of one kind.

    Attributes:
        tokens: mean number of them.
        seconds: mean duration.
        weight: observations.
    """

    tokens: float
    seconds: float
    weight: float = 0.0

    def add(self, tokens: float, seconds: float, share: float) -> None:
        """Take an observation in: the plain mean of the first ones, then a decayed one that outliers hardly move."""
        self.weight += share
        step = max(share / self.weight, (1 - FORGET) * share)
        self.tokens += step * (tokens - self.tokens)
        self.seconds += step * (min(seconds, OUTLIER * self.seconds) - self.seconds)


@dataclass(slots=True)
class Durations:
    """Mean seconds by a number of tokens; great numbers that are near each other are of one kind.

    Attributes:
        fixed: share of a duration that does not grow with the tokens, as long as nothing else is known.
        means: of each kind.
    """

    fixed: float = 1.0
    means: dict[int, Mean] = field(default_factory=dict)
    _line: list[tuple[float, float]] = field(default_factory=list)

    def observe(self, tokens: int, seconds: float, share: float = 1.0) -> None:
        """Take an observation in.

        Args:
            tokens: that it was about.
            seconds: that it took.
            share: of an observation, 0 to 1: what many took part in, all of them tell of.
        """
        self.means.setdefault(_kind(tokens), Mean(tokens, seconds)).add(tokens, seconds, share)
        self._line = self._guessed(_rising(sorted(self.means.values(), key=lambda mean: mean.tokens)))

    def expected(self, tokens: float) -> float:
        """Return the seconds that so many tokens take, a mean number: a line between and beyond what is known."""
        right = min(max(bisect(self._line, (tokens, math.inf)), 1), len(self._line) - 1)
        (few, short), (many, long) = self._line[right - 1], self._line[right]
        return short + (long - short) / (many - few) * (tokens - few)

    def _guessed(self, line: list[tuple[float, float]]) -> list[tuple[float, float]]:
        """Add what has not been seen: before the first kind, and in gaps between kinds of few tokens.

        Passes over few tokens cost steps, not a line. Where a step is shows when what lies before it is tried, so it is
        put as far up as it may be.
        """
        first, seconds = line[0]
        known = [(0.0, self.fixed * seconds) if first else (-1.0, seconds), *line]
        points = []
        for (few, short), (many, long) in pairwise(known):
            points.append((few, short))
            if many - few > 1 and many < EXACT:
                share = (1 - self.fixed) * (many - 1 - few) / (many - few)
                points.append((many - 1, short + share * (long - short)))
        return [*points, (many, long), (many + 1, long + (long - short) / (many - few))]


def _rising(means: Sequence[Mean]) -> list[tuple[float, float]]:
    """Return tokens and seconds such that more tokens never take less: what says so is noise.

    Neighbours that fall take their common mean (isotonic regression by pooling adjacent violators, Ayer et al. 1955).
    """
    pools: list[tuple[float, float, list[float]]] = []  # seconds, weight, tokens
    for mean in means:
        seconds, weight, tokens = mean.seconds, mean.weight, [mean.tokens]
        while pools and pools[-1][0] > seconds:
            before, heavy, fewer = pools.pop()
            seconds = (before * heavy + seconds * weight) / (heavy + weight)
            weight, tokens = heavy + weight, fewer + tokens
        pools.append((seconds, weight, tokens))
    return [(each, seconds) for seconds, _, tokens in pools for each in tokens]


def _kind(tokens: int) -> int:
    return tokens if tokens < EXACT else EXACT + int(KINDS * math.log2(tokens / EXACT))
