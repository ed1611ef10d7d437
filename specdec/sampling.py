"""Logits to distribution to token: the one way, for draft and target alike.

The order of the processors is Hugging Face's: logit_bias, repetition_penalty, presence and frequency penalties,
min_new_tokens, temperature, top_k, top_p, min_p. Everything is row by row, so that no session's distribution depends
on who shares the batch. Probabilities are float32; sums that decide are float64.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from specdec.parameters import SamplingParams


@dataclass(frozen=True, slots=True)
class RowContext:
    """What one row of logits stands on.

    Attributes:
        params: of the session.
        committed: [base_length] token ids; prompt and answer.
        prompt_length: how many of them came before this answer.
        drafted: draft tokens of this round before the row's position.
        end_token_ids: the model's end-of-sequence tokens.
    """

    params: SamplingParams
    committed: Sequence[int]
    prompt_length: int
    drafted: Sequence[int]
    end_token_ids: Sequence[int]

    @property
    def answer(self) -> list[int]:
        """Tokens of this answer before the row's position."""
        return [*self.committed[self.prompt_length :], *self.drafted]


def distributions(logits: torch.Tensor, rows: Sequence[RowContext]) -> torch.Tensor:
    """Turn logits into the distributions that tokens are chosen from.

    Args:
        logits: [n, vocabulary] float32 or float64.
        rows: [n] what each row stands on.

    Returns:
        [n, vocabulary] float32 probabilities; a greedy row has a single 1. A row with NaN or infinite logits, or left
        without any token by its parameters, is NaN throughout.
    """
    # Before anything overwrites what tells that the model has failed; minus infinity is a legal way to say never.
    failed = ~(logits.amax(dim=-1, keepdim=True) < torch.inf)
    logits = _processed(logits, rows)
    temperature = _column(rows, lambda params: 1.0 if params.greedy else params.temperature, logits)
    scaled = _cut_to_top_k(logits / temperature, rows)
    scaled = _cut_to_top_p(scaled, rows)
    probabilities = _cut_to_min_p(torch.softmax(scaled, dim=-1), rows)
    return _choose_greedily(probabilities, logits, rows).masked_fill(failed, torch.nan).float()


def sparse_distributions(probabilities: torch.Tensor, support_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Cut distributions to their likeliest tokens and renormalise: what a draft draws from and sends.

    Args:
        probabilities: [n, vocabulary] float32.
        support_size: k, tokens to keep at most.

    Returns:
        token ids [n, k] int64 and probabilities [n, k] float32, likeliest first; entries of probability 0 are padding.
    """
    values, token_ids = torch.topk(probabilities, min(support_size, probabilities.shape[-1]), dim=-1)
    values = values.double()
    return token_ids, (values / values.sum(dim=-1, keepdim=True)).float()


def inverse_cdf(weights: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """Draw one index a row by inverting the cumulative sum of its weights.

    Args:
        weights: [n, k] float64, not negative, at least one above 0 in each row; need not sum to 1.
        uniforms: [n] float64 in (0, 1).

    Returns:
        [n] int64 indices, each of a weight above 0 as far as the device adds up in order.
    """
    cumulative = weights.cumsum(dim=-1)
    total = cumulative[:, -1:]
    # Rounding may lift a threshold to the total itself, which no entry exceeds: below it, one that has weight does.
    thresholds = torch.minimum(uniforms[:, None] * total, total.nextafter(torch.zeros_like(total)))
    index = torch.searchsorted(cumulative, thresholds, right=True).squeeze(-1)
    return index.clamp(max=weights.shape[-1] - 1)  # of a row of NaN, too, there is an index


def coupled_choice(probabilities: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    """Choose by adding Gumbel noise to log-probabilities: one token a row, with the row's law.

    Args:
        probabilities: [n, vocabulary] float32.
        noise: [n, vocabulary] float64 standard Gumbel noise.

    Returns:
        [n] int64 token ids.
    """
    return (probabilities.double().log() + noise).argmax(dim=-1)


def greedy_likelihoods(logits: torch.Tensor, rows: Sequence[RowContext]) -> torch.Tensor:
    """Say how likely each token is to be the best for another model that much agrees: the law at temperature 1.

    Args:
        logits: [n, vocabulary] float32 or float64.
        rows: [n] what each row stands on; penalties and bans count, cuts do not.

    Returns:
        [n, vocabulary] float32 probabilities.
    """
    return torch.softmax(_processed(logits, rows), dim=-1).float()


def coupled_likelihoods(probabilities: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    """Say how likely each token is to be the choice of another model that much agrees, under the same noise.

    That is so if its log-probabilities differ from these by Gumbel noise of their own.

    Args:
        probabilities: [n, vocabulary] float32.
        noise: [n, vocabulary] float64 standard Gumbel noise.

    Returns:
        [n, vocabulary] float32 probabilities.
    """
    return torch.softmax(probabilities.double().log() + noise, dim=-1).float()


def _processed(logits: torch.Tensor, rows: Sequence[RowContext]) -> torch.Tensor:
    """Return a copy of logits, biased, penalised, and without the end tokens that must not come yet."""
    logits = logits.clone()
    for index, row in enumerate(rows):
        _add_bias(logits[index], row)
        _penalise(logits[index], row)
        _ban_end_tokens(logits[index], row)
    return logits


def _add_bias(logits: torch.Tensor, row: RowContext) -> None:
    if row.params.logit_bias:
        token_ids = torch.tensor(list(row.params.logit_bias), device=logits.device)
        logits[token_ids] += torch.tensor(
            list(row.params.logit_bias.values()), dtype=logits.dtype, device=logits.device
        )


def _penalise(logits: torch.Tensor, row: RowContext) -> None:
    params = row.params
    if params.repetition_penalty != 1.0:
        seen = torch.tensor(sorted({*row.committed, *row.drafted}), device=logits.device)
        scores = logits[seen]
        logits[seen] = torch.where(scores < 0, scores * params.repetition_penalty, scores / params.repetition_penalty)
    if (params.presence_penalty or params.frequency_penalty) and (answer := row.answer):
        # Counted on the host: to find distinct tokens on the device would wait for it.
        penalties = {
            token: params.presence_penalty + params.frequency_penalty * count
            for token, count in Counter(answer).items()
        }
        token_ids = torch.tensor(list(penalties), device=logits.device)
        logits[token_ids] -= torch.tensor(list(penalties.values()), dtype=logits.dtype, device=logits.device)


def _ban_end_tokens(logits: torch.Tensor, row: RowContext) -> None:
    answer_length = len(row.committed) - row.prompt_length + len(row.drafted)
    if answer_length < row.params.min_new_tokens:
        logits[[*row.end_token_ids, *row.params.stop_token_ids]] = -torch.inf


def _cut_to_top_k(logits: torch.Tensor, rows: Sequence[RowContext]) -> torch.Tensor:
    largest = max(row.params.top_k for row in rows)
    if largest == 0:
        return logits
    vocabulary = logits.shape[-1]
    best = torch.topk(logits, min(largest, vocabulary), dim=-1).values
    ranks = [min(row.params.top_k or vocabulary, best.shape[-1]) - 1 for row in rows]
    threshold = best.gather(-1, torch.tensor(ranks, device=logits.device)[:, None])
    cut = _column(rows, lambda params: float(params.top_k > 0), logits).bool()
    return logits.masked_fill(cut & (logits < threshold), -torch.inf)


def _cut_to_top_p(logits: torch.Tensor, rows: Sequence[RowContext]) -> torch.Tensor:
    if all(row.params.top_p == 1.0 for row in rows):
        return logits
    ordered, token_ids = torch.sort(logits, dim=-1, descending=True, stable=True)
    probabilities = torch.softmax(ordered, dim=-1).double()
    before = probabilities.cumsum(dim=-1) - probabilities  # mass of the likelier tokens
    top_p = _column(rows, lambda params: params.top_p, probabilities)
    dropped = (before >= top_p) & (top_p < 1.0)
    dropped[:, 0] = False
    return logits.masked_fill(torch.zeros_like(dropped).scatter_(-1, token_ids, dropped), -torch.inf)


def _cut_to_min_p(probabilities: torch.Tensor, rows: Sequence[RowContext]) -> torch.Tensor:
    if all(row.params.min_p == 0.0 for row in rows):
        return probabilities
    min_p = _column(rows, lambda params: params.min_p, probabilities)
    kept = probabilities.masked_fill(probabilities < min_p * probabilities.amax(dim=-1, keepdim=True), 0.0)
    # A row without min_p stays as it is to the bit: what its neighbours ask for is no concern of it.
    return torch.where(min_p > 0, kept / kept.sum(dim=-1, keepdim=True), probabilities)


def _choose_greedily(probabilities: torch.Tensor, logits: torch.Tensor, rows: Sequence[RowContext]) -> torch.Tensor:
    """Give the rows that are greedy a single 1."""
    if not any(row.params.greedy for row in rows):
        return probabilities
    greedy = _column(rows, lambda params: float(params.greedy), logits).bool()
    return torch.where(greedy, _one_hot_of_best(logits), probabilities)


def _one_hot_of_best(logits: torch.Tensor) -> torch.Tensor:
    best = torch.zeros_like(logits).scatter_(-1, logits.argmax(dim=-1, keepdim=True), 1.0)
    # argmax finds something in a row of NaN or of banned tokens alone; such a row must not look like a choice.
    return best.masked_fill(~logits.amax(dim=-1, keepdim=True).isfinite(), torch.nan)


def _column(rows: Sequence[RowContext], value: Callable[[SamplingParams], float], like: torch.Tensor) -> torch.Tensor:
    """Return [n, 1] of one parameter."""
    return torch.tensor([[value(row.params)] for row in rows], dtype=like.dtype, device=like.device)
