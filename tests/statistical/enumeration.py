"""The exact law of what rounds commit, by summing over every draft, accept index and next token.

Everything that decides is taken from the implementation: its p, its q, its acceptance and its residual.
"""

import itertools
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from specdec import verification
from specdec.parameters import Verification
from specdec.proposal import Proposal, SparseDistribution

Law = dict[tuple[int, ...], float]
Rows = Callable[[tuple[int, ...]], torch.Tensor]  # committed and drafted tokens -> [vocabulary] float32
Residual = Callable[..., tuple[torch.Tensor, torch.Tensor]]


def as_drawn(distribution: SparseDistribution) -> SparseDistribution:
    """Report what was drawn from, as an honest draft does."""
    return distribution


@dataclass(frozen=True)
class Rounds:
    """A way of running rounds, with the parts that a negative control replaces."""

    target: Rows
    draft: Callable[[tuple[int, ...]], SparseDistribution]
    vocabulary_size: int
    gamma: int
    way: Verification
    residual: Residual = verification.residual_distribution
    reported: Callable[[SparseDistribution], SparseDistribution] = as_drawn
    known: dict[tuple[int, tuple[int, ...]], Law] = field(default_factory=dict)

    def law(self, length: int, start: tuple[int, ...] = ()) -> Law:
        """Return the law of the first `length` tokens that rounds commit after `start`."""
        if (length, start) in self.known:
            return self.known[length, start]
        result = self.known[length, start] = defaultdict(float)
        for tokens, probability in self._round(start).items():
            committed = start + tokens
            if len(committed) >= length:
                result[committed[:length]] += probability
                continue
            for sequence, rest in self.law(length, committed).items():
                result[sequence] += probability * rest
        return result

    def _round(self, start: tuple[int, ...]) -> Law:
        committed: Law = defaultdict(float)
        for draft_tokens, distributions, drawn in self._proposals(start):
            proposal = Proposal(draft_tokens, tuple(self.reported(q) for q in distributions))
            p = verification.normalised(
                torch.stack([self.target(start + draft_tokens[:i]) for i in range(self.gamma + 1)])
            )
            draft = verification.draft_rows(proposal, p.device)
            weights, accepted = self._accept(p, draft)
            for accept_index, chance in enumerate(accepted):
                residual, _ = self.residual(p, draft, weights, torch.tensor(accept_index))
                for token, mass in enumerate(residual.tolist()):
                    committed[(*draft_tokens[:accept_index], token)] += drawn * chance * mass
        return committed

    def _accept(self, p: torch.Tensor, draft: verification.DraftRows) -> tuple[torch.Tensor, list[float]]:
        """Return the weights and the law of the accept index."""
        if self.way is Verification.TOKEN:
            weights = verification.token_weights(p)
            chances = verification.token_acceptance(p, draft).tolist()
            return weights, [
                _product(chances[:i]) * (1 - chances[i] if i < self.gamma else 1) for i in range(self.gamma + 1)
            ]
        weights = verification.block_weights(p, draft)
        chances = verification.block_acceptance(p, draft, weights).tolist()
        return weights, [
            (chances[i - 1] if i else 1) * _product(1 - chance for chance in chances[i:]) for i in range(self.gamma + 1)
        ]

    def _proposals(self, start: tuple[int, ...]):
        for draft_tokens in itertools.product(range(self.vocabulary_size), repeat=self.gamma):
            distributions = [self.draft(start + draft_tokens[:i]) for i in range(self.gamma)]
            drawn = 1.0
            for token, q in zip(draft_tokens, distributions, strict=True):
                chances = dict(zip(q.token_ids, q.probabilities, strict=True))
                drawn *= chances.get(token, 0.0) / sum(q.probabilities)
            if drawn > 0:
                yield draft_tokens, distributions, drawn


def target_law(target: Rows, length: int, start: tuple[int, ...] = ()) -> Law:
    """Return the law of the target decoding alone."""
    if len(start) == length:
        return {start: 1.0}
    result: Law = defaultdict(float)
    for token, mass in enumerate(verification.normalised(target(start)[None])[0].tolist()):
        for sequence, rest in target_law(target, length, (*start, token)).items():
            result[sequence] += mass * rest
    return result


def distance(left: Law, right: Law) -> float:
    """Return the largest difference of two laws' probabilities."""
    return max(abs(left.get(sequence, 0.0) - right.get(sequence, 0.0)) for sequence in {*left, *right})


def _product(factors) -> float:
    result = 1.0
    for factor in factors:
        result *= factor
    return result
