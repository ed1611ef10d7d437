"""The exact law of what rounds commit, by summing over every draft, accept index and next token.

Everything that decides is taken from the implementation: its p, its q, its acceptance and its residual.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from specdec import verification
from specdec.parameters import Verification
from specdec.proposal import Proposal
from specdec.verification import DraftRows
from tests.statistical.cases import Context, Rows
from tests.statistical.proposals import Drafting

CPU = torch.device("cpu")
Law = dict[Context, float]


@dataclass(frozen=True)
class Rounds:
    """A way of running rounds, with the parts that a negative control replaces.

    Attributes:
        target: p after a context.
        drafting: how proposals come about.
        way: of verification.
        residual_target: the p that the residual is built from.
        ends: tokens that end an answer.
        draft_rows: reads a proposal.
        residual: the law of the next token at an accept index.
    """

    target: Rows
    drafting: Drafting
    way: Verification
    residual_target: Rows
    ends: Sequence[int] = ()
    draft_rows: Callable[..., DraftRows] = verification.draft_rows
    residual: Callable[..., tuple[torch.Tensor, torch.Tensor]] = verification.residual_distribution
    known: dict[tuple[int, Context], Law] = field(default_factory=dict)

    def law(self, length: int, start: Context = ()) -> Law:
        """Return the law of the first `length` tokens that rounds commit after `start`, less where one ends there."""
        if (length, start) not in self.known:
            result: Law = defaultdict(float)
            for tokens, chance in self.round(start).items():
                committed = until_end(start + tokens, self.ends)[:length]
                if len(committed) == length or committed[-1] in self.ends:
                    result[committed] += chance
                    continue
                for sequence, rest in self.law(length, committed).items():
                    result[sequence] += chance * rest
            self.known[length, start] = result
        return self.known[length, start]

    def round(self, start: Context) -> Law:
        """Return the law of what one round commits after `start`."""
        by_gamma: dict[int, list[tuple[Proposal, float]]] = defaultdict(list)
        for proposal, chance in self.drafting.proposals(start):
            by_gamma[proposal.gamma].append((proposal, chance))
        committed: Law = defaultdict(float)
        for gamma, drafted in by_gamma.items():
            verdicts = self._verdicts(start, gamma, [proposal for proposal, _ in drafted])
            for (proposal, chance), by_index in zip(drafted, verdicts.tolist(), strict=True):
                for accept_index, masses in enumerate(by_index):
                    for token, mass in enumerate(masses):
                        committed[(*proposal.draft_tokens[:accept_index], token)] += chance * mass
        return committed

    def _verdicts(self, start: Context, gamma: int, proposals: list[Proposal]) -> torch.Tensor:
        """Return the law of (accept index, next token) for each proposal, all of one length."""
        p, built_from = (
            torch.stack([self._p(rows, start, proposal) for proposal in proposals])
            for rows in (self.target, self.residual_target)
        )
        draft = _stacked([self.draft_rows(proposal, CPU) for proposal in proposals])

        def verdict(p: torch.Tensor, built_from: torch.Tensor, *draft: torch.Tensor) -> torch.Tensor:
            weights, chances = self._accept(p, DraftRows(*draft))
            residuals = [
                self.residual(built_from, DraftRows(*draft), weights, torch.tensor(index))[0]
                for index in range(gamma + 1)
            ]
            return chances[:, None] * torch.stack(residuals)

        return torch.vmap(verdict)(p, built_from, *draft)

    @staticmethod
    def _p(rows: Rows, start: Context, proposal: Proposal) -> torch.Tensor:
        contexts = [start + proposal.draft_tokens[:index] for index in range(proposal.gamma + 1)]
        return verification.normalised(torch.stack([rows(context) for context in contexts]))

    def _accept(self, p: torch.Tensor, draft: DraftRows) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the weights and the [gamma + 1] law of the accept index."""
        one = torch.ones(1, dtype=p.dtype)
        if self.way is Verification.TOKEN:
            chances = verification.token_acceptance(p, draft)
            return verification.token_weights(p), torch.cat([one, chances.cumprod(0)]) * torch.cat([1 - chances, one])
        weights = verification.block_weights(p, draft)
        chances = verification.block_acceptance(p, draft, weights)
        none_later = torch.cat([(1 - chances).flip(0).cumprod(0).flip(0), one])
        return weights, torch.cat([one, chances]) * none_later


def target_law(target: Rows, length: int, ends: Sequence[int] = (), start: Context = ()) -> Law:
    """Return the law of the target decoding alone."""
    if len(start) == length or (start and start[-1] in ends):
        return {start: 1.0}
    result: Law = {}
    for token, mass in enumerate(verification.normalised(target(start)[None])[0].tolist()):
        if mass > 0:
            for sequence, rest in target_law(target, length, ends, (*start, token)).items():
                result[sequence] = mass * rest
    return result


def until_end(tokens: Context, ends: Sequence[int]) -> Context:
    """Cut after the first token that ends an answer."""
    return next((tokens[: index + 1] for index, token in enumerate(tokens) if token in ends), tokens)


def distance(left: Law, right: Law) -> float:
    """Return the largest difference of two laws' probabilities."""
    return max(abs(left.get(sequence, 0.0) - right.get(sequence, 0.0)) for sequence in {*left, *right})


def _stacked(drafts: list[DraftRows]) -> tuple[torch.Tensor, ...]:
    """Stack tokens, supports and probabilities; shorter supports are padded as in ``DraftRows``."""
    width = max(draft.token_ids.shape[1] for draft in drafts)

    def padded(rows: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.pad(rows, (0, width - rows.shape[1]))

    return (
        torch.stack([draft.tokens for draft in drafts]),
        torch.stack([padded(draft.token_ids) for draft in drafts]),
        torch.stack([padded(draft.probabilities) for draft in drafts]),
    )
