"""What a round may come to, and how likely that is: what to draft ahead is chosen from this.

A wrong estimate costs idle time and nothing else: a call that was not foreseen is served as if nothing had been.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

# Tokens that may come at a place, with how likely each is, likeliest first.
Ranking = Sequence[tuple[int, float]]


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
