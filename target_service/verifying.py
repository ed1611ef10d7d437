"""Verifying: one forward pass decides the proposals of every session in the batch.

Knows no gRPC. The engine calls ``Verify.begin`` once and ``decide`` after the pass that has fed the last draft token.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice

import torch

from specdec.errors import InvalidParameter, NumericalFailure, SpecdecError
from specdec.model.work import Done, Feed
from specdec.parameters import SamplingParams, Verification
from specdec.prefix import CommittedPrefix
from specdec.proposal import Proposal
from specdec.sampling import RowContext, distributions
from specdec.verification import check_draws, verify


@dataclass(frozen=True, slots=True)
class TargetLimits:
    """What the target model allows.

    Attributes:
        vocabulary_size: real size.
        context_length: tokens a cache may hold.
        end_token_ids: the model's end-of-sequence tokens.
    """

    vocabulary_size: int
    context_length: int
    end_token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log-probabilities at one position, of the unprocessed logits.

    Attributes:
        token_id: the committed token.
        logprob: its natural logarithm.
        top: (token id, log-probability), best first.
    """

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class Decision:
    """What a Verify call answers.

    Attributes:
        accept_index: draft tokens kept.
        next_token: the target's own token.
        residual_zero: the residual had no mass.
        logprobs: one a committed token, or empty.
    """

    accept_index: int
    next_token: int
    residual_zero: bool
    logprobs: tuple[TokenLogprobs, ...]


@dataclass(slots=True)
class Verify:
    """One Verify call.

    Attributes:
        prefix: the committed tokens the proposal continues.
        params: resolved sampling parameters.
        verification: how to decide.
        proposal: as the draft sent it.
        limits: of the model.
    """

    prefix: CommittedPrefix
    params: SamplingParams
    verification: Verification
    proposal: Proposal
    limits: TargetLimits
    committed: list[int] = field(default_factory=list)

    def begin(self, committed: list[int]) -> Feed:
        """Check the proposal and ask for the rows of its tokens and of the one that follows."""
        vocabulary_size = self.limits.vocabulary_size
        self.params.check_vocabulary(vocabulary_size, self.limits.end_token_ids)
        base_length = len(committed)
        check_draws(self.proposal, vocabulary_size, self.verification, self.params.seed, base_length)
        if base_length + self.proposal.gamma > self.limits.context_length:
            raise InvalidParameter(f"longer than the context of {self.limits.context_length}", field="prefix.tokens")
        self.committed = committed
        return Feed(list(self.proposal.draft_tokens), self.proposal.gamma + 1)

    @property
    def reach(self) -> int:
        """Tokens that are fed after the committed ones."""
        return self.proposal.gamma

    def cut_short(self) -> None:
        """Have nothing to answer without the pass."""

    @property
    def rows(self) -> list[RowContext]:
        """What each of the gamma + 1 rows stands on."""
        drafted = self.proposal.draft_tokens
        return [
            RowContext(
                self.params, self.committed, self.prefix.prompt_length, drafted[:index], self.limits.end_token_ids
            )
            for index in range(self.proposal.gamma + 1)
        ]


def decide(ready: Sequence[tuple[Verify, torch.Tensor]]) -> list[Feed | Done | SpecdecError]:
    """Decide every proposal of the batch, with one device-to-host copy.

    Args:
        ready: calls with their [gamma + 1, vocabulary] logits.

    Returns:
        One outcome a call.
    """
    calls = [call for call, _ in ready]
    target_probs = distributions(
        torch.cat([logits for _, logits in ready]), [row for call in calls for row in call.rows]
    ).split([call.proposal.gamma + 1 for call in calls])
    packed = [_pack(call, logits, p) for (call, logits), p in zip(ready, target_probs, strict=True)]
    host = iter(torch.cat(packed).tolist())
    return [
        _outcome(call, logits, list(islice(host, len(part))))
        for (call, logits), part in zip(ready, packed, strict=True)
    ]


def _pack(call: Verify, logits: torch.Tensor, target_probs: torch.Tensor) -> torch.Tensor:
    """Gather a call's verdict and log-probabilities in one float64 vector; token ids are exact in it."""
    verdict = verify(call.proposal, target_probs, call.verification, call.params.seed, len(call.committed))
    finite = target_probs[:, 0].isfinite().all()  # a row is NaN throughout or nowhere
    head = [finite.long(), verdict.accept_index, verdict.next_token, verdict.residual_zero.long()]
    parts = [torch.stack(head).double()]
    if call.params.logprobs is not None:
        parts += _logprobs(call, logits, verdict.accept_index, verdict.next_token)
    return torch.cat(parts)


def _logprobs(
    call: Verify, logits: torch.Tensor, accept_index: torch.Tensor, next_token: torch.Tensor
) -> list[torch.Tensor]:
    """Return [gamma + 1] of the tokens, then [gamma + 1, n, 2] alternatives' ids and values, flat.

    The entry at accept_index is next_token's; later ones are of rejected tokens and not read.
    """
    logprobs = torch.log_softmax(logits.double(), dim=-1)
    padded = torch.tensor([*call.proposal.draft_tokens, 0], device=logits.device)
    tokens = torch.where(torch.arange(len(padded), device=logits.device) == accept_index, next_token, padded)
    count = min(call.params.logprobs or 0, logprobs.shape[-1])
    values, token_ids = torch.topk(logprobs, count, dim=-1)
    return [logprobs.gather(1, tokens[:, None]).flatten(), torch.stack([token_ids.double(), values], dim=-1).flatten()]


def _outcome(call: Verify, logits: torch.Tensor, host: list[float]) -> Done | SpecdecError:
    """Read what ``_pack`` wrote of a call."""
    finite, accept_index, next_token, residual_zero = (int(value) for value in host[:4])
    if not finite:
        return _failure(call, logits)
    tokens = [*call.proposal.draft_tokens[:accept_index], next_token]
    decision = Decision(accept_index, next_token, bool(residual_zero), _token_logprobs(call, host[4:], tokens))
    kept = len(call.committed) + accept_index
    return Done(decision, keep=kept, committed=kept)


def _failure(call: Verify, logits: torch.Tensor) -> SpecdecError:
    """Say whose fault it is that a row has no token: the model's, or the parameters' that ban all it would choose."""
    well = not (logits.isnan() | logits.isposinf()).any() and logits.isfinite().any(dim=-1).all()
    if well and call.params.min_new_tokens:
        field = "sampling_params.min_new_tokens"
        return InvalidParameter(f"{field} leaves no token where the model gives a chance to ends alone", field=field)
    return NumericalFailure("the target's logits are not finite")


def _token_logprobs(call: Verify, values: list[float], tokens: Sequence[int]) -> tuple[TokenLogprobs, ...]:
    if not values:
        return ()
    rows = call.proposal.gamma + 1
    width = len(values) // rows - 1  # a row's alternatives: id, value, id, value, …
    found = []
    for index, token in enumerate(tokens):
        row = values[rows + index * width : rows + (index + 1) * width]
        top = tuple((int(token_id), value) for token_id, value in zip(row[::2], row[1::2], strict=True))
        found.append(TokenLogprobs(token, values[index], top))
    return tuple(found)
