"""How long things take by how many tokens they are about, as means of what has been seen. Pure."""

import math
from bisect import bisect
from dataclasses import dataclass, field

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
        means: of each kind.
    """

    means: dict[int, Mean] = field(default_factory=dict)

    def observe(self, tokens: int, seconds: float, share: float = 1.0) -> None:
        """Take an observation in.

        Args:
            tokens: that it was about.
            seconds: that it took.
            share: of an observation, 0 to 1: what many took part in, all of them tell of.
        """
        self.means.setdefault(_kind(tokens), Mean(tokens, seconds)).add(tokens, seconds, share)

    def expected(self, tokens: float) -> float:
        """Return the seconds that so many tokens take, a mean number: a line between and beyond what is known.

        More tokens never take less: what says so is noise.
        """
        known = sorted((mean.tokens, mean.seconds) for mean in self.means.values())
        if len(known) == 1:
            return known[0][1]
        right = min(max(bisect(known, (tokens, math.inf)), 1), len(known) - 1)
        (few, short), (many, long) = known[right - 1], known[right]
        return short + max(0.0, (long - short) / (many - few)) * (tokens - few)


def _kind(tokens: int) -> int:
    return tokens if tokens < EXACT else EXACT + int(KINDS * math.log2(tokens / EXACT))
