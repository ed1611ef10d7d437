"""How many draft tokens stand, and which one token the target adds. Three exact ways.

p are the target's rows, q what the draft tokens were drawn from, as in Leviathan et al. 2023 (arXiv 2211.17192); Chen
et al. 2023 (2302.01318) use the letters the other way round. Each way gives, for every draft token, a probability of
acceptance, and for every possible accept index the weight of the residual there; the draws then decide.

Losslessness: the committed tokens have the target's law whatever the draft's was, provided each draft token was drawn
from the very numbers passed here, with draws of its own.
"""

from dataclasses import dataclass

import torch

from specdec.draws import Purpose, gumbel_noise, uniform
from specdec.errors import InvalidProposal
from specdec.parameters import Verification
from specdec.proposal import Proposal
from specdec.sampling import coupled_choice, inverse_cdf


@dataclass(frozen=True, slots=True)
class DraftRows:
    """A proposal on the target's device.

    Attributes:
        tokens: [gamma] int64 draft tokens.
        token_ids: [gamma + 1, k] int64 supports; the last row is padding: nothing was drafted there.
        probabilities: [gamma + 1, k] float64, each row of a draft token sums to 1; padding is 0.
    """

    tokens: torch.Tensor
    token_ids: torch.Tensor
    probabilities: torch.Tensor


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a round commits, still on the device: draft_tokens[:accept_index] and next_token.

    Attributes:
        accept_index: [] int64, 0 to gamma.
        next_token: [] int64.
        residual_zero: [] bool, the residual had no mass and p itself was used.
    """

    accept_index: torch.Tensor
    next_token: torch.Tensor
    residual_zero: torch.Tensor


def verify(
    proposal: Proposal,
    target_probs: torch.Tensor,
    verification: Verification,
    seed: int,
    base_length: int,
) -> Verdict:
    """Decide how many draft tokens stand, and draw the one token the target adds.

    Args:
        proposal: gamma draft tokens, gamma may be 0; checked by ``check_draws`` before.
        target_probs: [gamma + 1, vocabulary] float32. Row i is p at position base_length + i.
        verification: the way the proposal was drawn for.
        seed: of the session.
        base_length: tokens committed before this round.

    Returns:
        The verdict, on the device of target_probs; nothing is copied to the host.
    """
    if verification is Verification.COUPLED:
        return _verify_coupled(proposal, target_probs, seed, base_length)
    if not proposal.gamma:
        return _plain(target_probs, seed, base_length)
    draft = draft_rows(proposal, target_probs.device)
    p = normalised(target_probs)
    accept_draws = _uniforms(seed, base_length, proposal.gamma, Purpose.ACCEPT, p.device)
    if verification is Verification.TOKEN:
        weights = token_weights(p)
        accepted = accept_draws < token_acceptance(p, draft)
        accept_index = accepted.long().cumprod(dim=0).sum()
    else:
        weights = block_weights(p, draft)
        accepted = accept_draws < block_acceptance(p, draft, weights)
        accept_index = (accepted * torch.arange(1, proposal.gamma + 1, device=p.device)).max()
    residual, residual_zero = residual_distribution(p, draft, weights, accept_index)
    next_draws = _uniforms(seed, base_length, proposal.gamma + 1, Purpose.NEXT, p.device)
    next_token = inverse_cdf(residual[None], _entry(next_draws, accept_index)[None])[0]
    return Verdict(accept_index, next_token, residual_zero)


def _plain(target_probs: torch.Tensor, seed: int, base_length: int) -> Verdict:
    """Draw the one token of plain decoding: nothing stands or falls, and the residual is p itself."""
    draws = _uniforms(seed, base_length, 1, Purpose.NEXT, target_probs.device)
    none = torch.zeros_like(target_probs[0, 0], dtype=torch.int64)
    return Verdict(none, inverse_cdf(target_probs.double(), draws)[0], none.bool())


def _verify_coupled(proposal: Proposal, target_probs: torch.Tensor, seed: int, base_length: int) -> Verdict:
    """Keep the draft tokens that are the target's own choices under the session's noise.

    Source: Daliri, Musco, Suresh 2024 (arXiv 2408.07978): Gumbel coupling, no q on the wire.
    """
    count, vocabulary_size = target_probs.shape
    noise = [gumbel_noise(seed, base_length + i, vocabulary_size, target_probs.device) for i in range(count)]
    choices = coupled_choice(target_probs, torch.stack(noise))
    draft_tokens = torch.tensor(proposal.draft_tokens, dtype=torch.int64, device=target_probs.device)
    accept_index = (draft_tokens == choices[:-1]).long().cumprod(dim=0).sum()
    return Verdict(accept_index, _entry(choices, accept_index), torch.zeros_like(accept_index, dtype=torch.bool))


def draft_rows(proposal: Proposal, device: torch.device) -> DraftRows:
    """Put a proposal on the device, its distributions divided by their float64 sums."""
    supports = [distribution.token_ids for distribution in proposal.draft_distributions] + [(0,)]
    values = [distribution.probabilities for distribution in proposal.draft_distributions] + [(0.0,)]
    width = max(len(support) for support in supports)
    token_ids = torch.tensor([[*row, *[0] * (width - len(row))] for row in supports], device=device)
    probabilities = torch.tensor(
        [[*row, *[0.0] * (width - len(row))] for row in values], dtype=torch.float64, device=device
    )
    probabilities[:-1] /= probabilities[:-1].sum(dim=-1, keepdim=True)
    tokens = torch.tensor(proposal.draft_tokens, dtype=torch.int64, device=device)
    return DraftRows(tokens, token_ids, probabilities)


def normalised(target_probs: torch.Tensor) -> torch.Tensor:
    """Return p in float64, divided by its float64 sum."""
    p = target_probs.double()
    return p / p.sum(dim=-1, keepdim=True)


def token_acceptance(p: torch.Tensor, draft: DraftRows) -> torch.Tensor:
    """Return [gamma] min(1, p / q) of the draft tokens (Leviathan et al. 2023, algorithm 1)."""
    return (_of_tokens(p, draft) / _drawn(draft)).clamp(max=1.0)


def token_weights(p: torch.Tensor) -> torch.Tensor:
    """Return [gamma + 1] ones: the residual of TOKEN is max(0, p - q)."""
    return torch.ones(p.shape[0], dtype=p.dtype, device=p.device)


def block_weights(p: torch.Tensor, draft: DraftRows) -> torch.Tensor:
    """Return [gamma + 1] the weight w of the block's prefixes: w[0] = 1, w[i] = min(1, w[i - 1] · p / q).

    Source: Sun et al. 2024, "Block Verification Accelerates Speculative Decoding" (arXiv 2403.10444), algorithm 2.
    """
    weights = [torch.ones((), dtype=p.dtype, device=p.device)]
    for ratio in (_of_tokens(p, draft) / _drawn(draft)).unbind():
        weights.append((weights[-1] * ratio).clamp(max=1.0))
    return torch.stack(weights)


def block_acceptance(p: torch.Tensor, draft: DraftRows, weights: torch.Tensor) -> torch.Tensor:
    """Return [gamma] the probability that the block is kept up to and including each draft token.

    The last that comes up decides. With r = sum of max(0, w·p - q) at the following position it is r / (1 - w + r), and
    w itself for the last draft token (Sun et al. 2024, algorithm 2).
    """
    inside = torch.gather(p, 1, draft.token_ids)
    held = draft.probabilities > 0
    excess = (weights[:, None] * inside - draft.probabilities).clamp(min=0.0)
    outside = 1.0 - torch.where(held, inside, 0.0).sum(dim=-1)
    mass = torch.where(held, excess, 0.0).sum(dim=-1) + weights * outside.clamp(min=0.0)
    room = 1.0 - weights + mass
    # No room means that a later draft token is kept for certain: this one never decides.
    acceptance = torch.where(room > 0, mass / room, 0.0)[1:]
    acceptance[-1:] = weights[-1:] if len(acceptance) else acceptance
    return acceptance


def residual_distribution(
    p: torch.Tensor, draft: DraftRows, weights: torch.Tensor, accept_index: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what next_token is drawn from at accept_index: max(0, w·p - q), normalised.

    After a full accept q is empty there and the residual is p itself.

    Returns:
        [vocabulary] float64 of sum 1, and [] bool: it had no mass, which only rounding brings about, and p is returned.
    """
    row = _entry(p, accept_index)
    residual = (_entry(weights, accept_index) * row).scatter_add(
        0, _entry(draft.token_ids, accept_index), -_entry(draft.probabilities, accept_index)
    )
    residual = residual.clamp(min=0.0)
    mass = residual.sum()
    empty = mass <= 0
    return torch.where(empty, row, residual / mass), empty


def check_draws(
    proposal: Proposal, vocabulary_size: int, verification: Verification, seed: int, base_length: int
) -> None:
    """Refuse a proposal whose tokens were not drawn from its distributions with the draws of this round.

    An entry of probability 1 needs no draw. Structure (lengths, finite positive values, ids once) is the codec's to
    check. The device of the draft may have summed in another order, so an interval is widened by the rounding of a sum.

    Raises:
        InvalidProposal: names the field.
    """
    _check_range(proposal.draft_tokens, vocabulary_size, "proposal.draft_tokens")
    if verification is Verification.COUPLED:
        return
    for index, (token, distribution) in enumerate(
        zip(proposal.draft_tokens, proposal.draft_distributions, strict=True)
    ):
        field = f"proposal.draft_distributions[{index}]"
        _check_range(distribution.token_ids, vocabulary_size, f"{field}.token_ids")
        if token not in distribution.token_ids:
            raise InvalidProposal(f"draft token {index} is outside its distribution", field=field)
        place = distribution.token_ids.index(token)
        below = sum(distribution.probabilities[:place])
        total = sum(distribution.probabilities)
        slack = len(distribution.token_ids) * 2.0**-50 * total
        threshold = uniform(seed, base_length, base_length + index, Purpose.DRAFT) * total
        if not below - slack <= threshold <= below + distribution.probabilities[place] + slack:
            raise InvalidProposal(f"draft token {index} is not the one its draw gives", field=field)


def _entry(values: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Return values[index] for an index on the device, without reading it on the host, as indexing would."""
    return values.index_select(0, index[None])[0]


def _check_range(token_ids: tuple[int, ...], vocabulary_size: int, field: str) -> None:
    for token in token_ids:
        if not 0 <= token < vocabulary_size:
            raise InvalidProposal(f"token id {token} is not below {vocabulary_size}", field=field)


def _uniforms(seed: int, base_length: int, count: int, purpose: Purpose, device: torch.device) -> torch.Tensor:
    values = [uniform(seed, base_length, base_length + index, purpose) for index in range(count)]
    return torch.tensor(values, dtype=torch.float64, device=device)


def _of_tokens(p: torch.Tensor, draft: DraftRows) -> torch.Tensor:
    """Return [gamma] p of the draft tokens."""
    return p[:-1].gather(1, draft.tokens[:, None]).squeeze(1)


def _drawn(draft: DraftRows) -> torch.Tensor:
    """Return [gamma] q of the draft tokens."""
    matches = (draft.token_ids[:-1] == draft.tokens[:, None]) & (draft.probabilities[:-1] > 0)
    return torch.where(matches, draft.probabilities[:-1], 0.0).sum(dim=-1)
