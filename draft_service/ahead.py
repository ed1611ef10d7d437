"""What a round may come to, and how likely that is: what to draft ahead is chosen from this.

A wrong estimate costs idle time and nothing else: a call that was not foreseen is served as if nothing had been.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

# Tokens that may come at a place, with how likely each is, likeliest first.
Ranking = Sequence[tuple[int, float]]

BINS = 10
PRIOR_RATE, PRIOR_TRIALS = 0.7, 8.0  # of draft tokens of any confidence, before anything is known
MEMORY = 1000.0  # trials that a bin remembers; of more the older ones fade


@dataclass(frozen=True, slots=True)
class Prospective:
    """One way in which a round may end.

    Attributes:
        accept_index: draft tokens kept.
        next_token: the target's.
        probability: of both.
    """

    accept_index: int
    next_token: int
    probability: float


class Calibration:
    """How often draft tokens stand, by how confident the draft was of them."""

    def __init__(self) -> None:
        """Know nothing but the prior."""
        self._trials = [PRIOR_TRIALS] * BINS
        self._stood = [PRIOR_TRIALS * PRIOR_RATE] * BINS

    def rate(self, confidence: float) -> float:
        """Return the share of tokens that stand, of those tested."""
        at = _bin(confidence)
        return self._stood[at] / self._trials[at]

    def learn(self, confidences: Sequence[float], accept_index: int) -> None:
        """Take in a round that came to its end: the draft tokens up to the first that did not stand were tested."""
        for index, confidence in enumerate(confidences[: accept_index + 1]):
            at = _bin(confidence)
            fade = min(1.0, MEMORY / (self._trials[at] + 1.0))
            self._trials[at] = (self._trials[at] + 1.0) * fade
            self._stood[at] = (self._stood[at] + (index < accept_index)) * fade


def rejections(draft_tokens: Sequence[int], rankings: Sequence[Ranking], rates: Sequence[float]) -> list[Prospective]:
    """Return the ways in which a draft token may fall; what the target says instead is never that token.

    Under TOKEN and COUPLED that is plain. Under BLOCK a token of which w·p - q is above 0 has a ratio p / q above 1 / w
    and so the weight 1, with which the block is kept up to it at least.

    Args:
        draft_tokens: [gamma].
        rankings: [gamma] of the places of the draft tokens.
        rates: [gamma] how likely each stands, if those before it do.
    """
    found, standing = [], 1.0
    for index, (token, ranking, rate) in enumerate(zip(draft_tokens, rankings, rates, strict=True)):
        others = [(other, weight) for other, weight in ranking if other != token and weight > 0]
        falls = standing * (1.0 - rate) / (sum(weight for _, weight in others) or 1.0)
        found += [Prospective(index, other, falls * weight) for other, weight in others]
        standing *= rate
    return found


def full_accepts(gamma: int, ranking: Ranking, standing: float) -> list[Prospective]:
    """Return the ways in which all draft tokens may stand.

    Args:
        gamma: their number.
        ranking: of the place behind them.
        standing: how likely it is that they all do.
    """
    return [Prospective(gamma, token, standing * weight) for token, weight in ranking if weight > 0]


def likeliest(ways: Sequence[Prospective], most: int) -> list[Prospective]:
    """Return the likeliest ``most`` of them at most, likeliest first."""
    return heapq.nlargest(most, ways, key=lambda way: way.probability)


def _bin(confidence: float) -> int:
    return min(int(confidence * BINS), BINS - 1)
