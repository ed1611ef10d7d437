"""Draft tokens and the sparse distributions they were drawn from, as plain values."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SparseDistribution:
    """A distribution over few tokens (q), in the order of the draw.

    Attributes:
        token_ids: [k] ids without repetition.
        probabilities: [k] float32 values, above 0. What they do not sum to 1 by is divided out in float64.
    """

    token_ids: tuple[int, ...]
    probabilities: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Proposal:
    """What the draft proposes for one round; empty is legal.

    Attributes:
        draft_tokens: [gamma] ids; entry i is meant for position base_length + i.
        draft_distributions: [gamma] what they were drawn from; empty for COUPLED.
    """

    draft_tokens: tuple[int, ...] = ()
    draft_distributions: tuple[SparseDistribution, ...] = ()

    @property
    def gamma(self) -> int:
        """Number of draft tokens."""
        return len(self.draft_tokens)
