"""What speculation may gain by the arithmetic alone. Pure.

A round proposes gamma draft tokens, each kept with some chance given that the ones before it were, and commits those
that stand and one more (Leviathan et al. 2023, arXiv 2211.17192, theorem 3.8 and equation 1). It costs gamma draft
passes, one target pass over gamma + 1 tokens and the round trips of two calls; plain decoding costs one target pass and
the round trip of one call for every token.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import mul


def expected_tokens(acceptance: Sequence[float]) -> float:
    """Return E, the tokens a round commits: 1 + a_1 + a_1·a_2 + ….

    Args:
        acceptance: chance of each draft token, given that all before it stand; empty for plain decoding.
    """
    return 1.0 + math.fsum(accumulate(acceptance, mul))


def alike(alpha: float, gamma: int) -> list[float]:
    """Return the acceptance of gamma draft tokens that all stand with the same chance."""
    return [alpha] * gamma


@dataclass(frozen=True, slots=True)
class Costs:
    """What a round is made of; any unit of time.

    Attributes:
        draft: a draft token.
        verify: the target's pass of a speculating round.
        plain: the target's pass over one token.
        round_trip: the way of one call to a model server and back.
    """

    draft: float
    verify: float
    plain: float
    round_trip: float = 0.0

    def round(self, gamma: int) -> float:
        """Return the time of a round, of plain decoding for gamma 0."""
        if not gamma:
            return self.plain + self.round_trip
        return gamma * self.draft + self.verify + 2 * self.round_trip

    def round_ahead(self, gamma: int, hit_rate: float) -> float:
        """Return the mean time of a round whose proposal was drafted during the verification before it, when it hit."""
        return self.round(gamma) - hit_rate * gamma * self.draft

    def speedup(self, acceptance: Sequence[float]) -> float:
        """Return how many times the tokens a second of plain decoding."""
        return expected_tokens(acceptance) * self.round(0) / self.round(len(acceptance))
