"""The law of committed tokens equals the target's, by exact enumeration; broken ways of verifying are caught."""

from functools import cache

import pytest
import torch

from specdec import verification
from specdec.parameters import SamplingParams, Verification
from specdec.proposal import SparseDistribution
from specdec.sampling import RowContext, distributions, sparse_distributions
from tests.statistical.enumeration import Rounds, distance, target_law

VOCABULARY = 3
LENGTH = 4
EXACT = 1e-9
CAUGHT = 1e-3

PARAMS = {
    "plain": SamplingParams(temperature=1.0),
    "greedy": SamplingParams(temperature=0.0),
    "cool": SamplingParams(temperature=0.7),
    "hot": SamplingParams(temperature=1.3),
    "top_k": SamplingParams(temperature=1.0, top_k=2),
    "top_p": SamplingParams(temperature=1.0, top_p=0.8),
    "min_p": SamplingParams(temperature=1.0, min_p=0.3),
    "penalties": SamplingParams(temperature=1.0, repetition_penalty=1.4, presence_penalty=0.5, frequency_penalty=0.3),
    "bias": SamplingParams(temperature=1.0, logit_bias={1: 1.5}),
    "all": SamplingParams(
        temperature=0.8,
        top_k=2,
        top_p=0.95,
        min_p=0.05,
        repetition_penalty=1.2,
        presence_penalty=0.2,
        frequency_penalty=0.1,
        logit_bias={0: -0.5},
        min_new_tokens=2,
        stop_token_ids=(2,),
    ),
}


def logits_of(seed: int, context: tuple[int, ...]) -> torch.Tensor:
    """Return logits that depend on the whole context."""
    generator = torch.Generator().manual_seed(hash((seed, context)) % 2**31)
    return torch.randn(VOCABULARY, generator=generator, dtype=torch.float64) * 1.5


def rows_of(seed: int, params: SamplingParams):
    """Return what the servers compute: processed distributions after a context."""

    @cache
    def rows(context: tuple[int, ...]) -> torch.Tensor:
        return distributions(logits_of(seed, context)[None], [RowContext(params, (0, *context), 1, (), ())])[0]

    return rows


def draft_of(seed: int, params: SamplingParams, support_size: int = VOCABULARY):
    rows = rows_of(seed, params)

    @cache
    def draft(context: tuple[int, ...]) -> SparseDistribution:
        token_ids, q = sparse_distributions(rows(context)[None], support_size)
        kept = [(i, value) for i, value in zip(token_ids[0].tolist(), q[0].tolist(), strict=True) if value > 0]
        return SparseDistribution(tuple(i for i, _ in kept), tuple(value for _, value in kept))

    return draft


def rounds(params: SamplingParams, gamma: int, way: Verification, **changes) -> Rounds:
    return Rounds(rows_of(1, params), changes.pop("draft", draft_of(2, params)), VOCABULARY, gamma, way, **changes)


def error_of(broken: Rounds) -> float:
    return distance(broken.law(LENGTH), target_law(broken.target, LENGTH))


@pytest.mark.parametrize("way", [Verification.TOKEN, Verification.BLOCK])
@pytest.mark.parametrize("gamma", [0, 1, 2, 3])
@pytest.mark.parametrize("name", PARAMS)
def test_law_is_the_targets(name, gamma, way):
    assert error_of(rounds(PARAMS[name], gamma, way)) < EXACT


@pytest.mark.parametrize("way", [Verification.TOKEN, Verification.BLOCK])
@pytest.mark.parametrize("support_size", [1, 2])
def test_law_survives_a_cut_support(support_size, way):
    draft = draft_of(2, PARAMS["plain"], support_size)
    assert error_of(rounds(PARAMS["plain"], 2, way, draft=draft)) < EXACT


@pytest.mark.parametrize("way", [Verification.TOKEN, Verification.BLOCK])
def test_law_survives_a_greedy_draft(way):
    draft = draft_of(2, PARAMS["greedy"])
    assert error_of(rounds(PARAMS["plain"], 2, way, draft=draft)) < EXACT


def test_block_never_keeps_fewer_tokens():
    for seed in range(3, 13):
        draft = draft_of(seed, PARAMS["plain"])
        kept = {
            way: sum(
                (len(tokens) - 1) * chance
                for tokens, chance in rounds(PARAMS["plain"], 3, way, draft=draft)._round(()).items()
            )
            for way in (Verification.TOKEN, Verification.BLOCK)
        }
        assert kept[Verification.BLOCK] >= kept[Verification.TOKEN] - EXACT


# Negative controls: each is a known way of being wrong, and the enumeration must see it.


@pytest.mark.parametrize("way", [Verification.TOKEN, Verification.BLOCK])
def test_control_correction_from_the_target_instead_of_the_residual(way):
    def no_residual(p, draft, weights, accept_index):
        return p[accept_index], torch.tensor(False)

    assert error_of(rounds(PARAMS["plain"], 2, way, residual=no_residual)) > CAUGHT


@pytest.mark.parametrize("way", [Verification.TOKEN, Verification.BLOCK])
def test_control_drawn_from_another_temperature_than_reported(way):
    def report(drawn: SparseDistribution) -> SparseDistribution:
        values = [value**2 for value in drawn.probabilities]
        return SparseDistribution(drawn.token_ids, tuple(value / sum(values) for value in values))

    assert error_of(rounds(PARAMS["plain"], 2, way, reported=report)) > CAUGHT


def test_control_token_residual_in_block_verification():
    def token_residual(p, draft, weights, accept_index):
        return verification.residual_distribution(p, draft, torch.ones_like(weights), accept_index)

    assert error_of(rounds(PARAMS["plain"], 3, Verification.BLOCK, residual=token_residual)) > CAUGHT


def test_control_rounded_after_the_draw():
    def report(drawn: SparseDistribution) -> SparseDistribution:
        rounded = [max(round(value, 1), 0.05) for value in drawn.probabilities]
        return SparseDistribution(drawn.token_ids, tuple(value / sum(rounded) for value in rounded))

    assert error_of(rounds(PARAMS["plain"], 2, Verification.TOKEN, reported=report)) > CAUGHT
