"""The grid that the law is tested on: temperatures, options and gammas, and toy models that see the whole context."""

import itertools
from collections.abc import Callable, Hashable, Sequence
from functools import cache

import torch

from specdec.parameters import SamplingParams
from specdec.proposal import SparseDistribution
from specdec.sampling import RowContext, distributions, sparse_distributions

VOCABULARY = 3
PROMPT = (0,)
TEMPERATURES = {"greedy": 0.0, "cool": 0.7, "hot": 1.3}
OPTIONS = {
    "none": {},
    "top_k": {"top_k": 2},
    "top_p": {"top_p": 0.8},
    "min_p": {"min_p": 0.3},
    "penalties": {"repetition_penalty": 1.6, "presence_penalty": 0.8, "frequency_penalty": 0.5},
    "bias": {"logit_bias": {1: 1.5}},
    "all": {
        "top_k": 2,
        "top_p": 0.95,
        "min_p": 0.05,
        "repetition_penalty": 1.2,
        "presence_penalty": 0.2,
        "frequency_penalty": 0.1,
        "logit_bias": {0: -0.5},
        "min_new_tokens": 1,
        "stop_token_ids": (2,),
    },
}

Context = tuple[int, ...]  # tokens of the answer, committed and drafted
Rows = Callable[[Context], torch.Tensor]  # [vocabulary] float32, what the servers make of the logits
Draft = Callable[[Context], SparseDistribution]
Gamma = Callable[[Context], int]  # from the committed tokens to the draft tokens of the round

GAMMAS: dict[str, Gamma] = {
    "1": lambda committed: 1,
    "4": lambda committed: 4,
    "mixed": lambda committed: (2, 4, 0, 3, 1)[(len(committed) + 2 * sum(committed)) % 5],
}


def params_of(temperature: str, option: str) -> SamplingParams:
    """Return the parameters of a cell."""
    return SamplingParams(temperature=TEMPERATURES[temperature], **OPTIONS[option])


@cache
def logits_of(model: int, context: Context) -> torch.Tensor:
    """Return a toy model's [VOCABULARY] float64 logits; they depend on the whole context."""
    generator = torch.Generator().manual_seed(hash((model, context)) % 2**31)
    return torch.randn(VOCABULARY, generator=generator, dtype=torch.float64) * 1.5


def rows_of(model: int, params: SamplingParams) -> Rows:
    """Return a toy model's processed distributions."""

    @cache
    def rows(context: Context) -> torch.Tensor:
        row = RowContext(params, (*PROMPT, *context), len(PROMPT), (), ())
        return distributions(logits_of(model, context)[None], [row])[0]

    return rows


def draft_of(model: int, params: SamplingParams, support_size: int = VOCABULARY) -> Draft:
    """Return what a toy draft draws from and sends."""
    rows = rows_of(model, params)

    @cache
    def draft(context: Context) -> SparseDistribution:
        token_ids, q = sparse_distributions(rows(context)[None], support_size)
        kept = [(token, value) for token, value in zip(token_ids[0].tolist(), q[0].tolist(), strict=True) if value > 0]
        return SparseDistribution(*zip(*kept, strict=True))

    return draft


def pairwise(*factors: Sequence[Hashable]) -> list[tuple]:
    """Return few rows, one value a factor, in which every two values of different factors meet."""

    def pairs(row: tuple) -> set:
        return set(itertools.combinations(enumerate(row), 2))

    rows = list(itertools.product(*factors))
    missing = set().union(*map(pairs, rows))
    chosen = []
    while missing:
        best = max(rows, key=lambda row: len(pairs(row) & missing))
        chosen.append(best)
        missing -= pairs(best)
    return chosen
