"""Known ways of being wrong, each beside what is right: the enumeration tells them apart."""

import dataclasses

import pytest
import torch

from specdec import verification
from specdec.parameters import SamplingParams, Verification
from specdec.proposal import Proposal, SparseDistribution
from specdec.verification import DraftRows
from tests.statistical.cases import GAMMAS, VOCABULARY, Context, draft_of, params_of, rows_of
from tests.statistical.enumeration import Rounds, distance, target_law
from tests.statistical.proposals import Drafting, Step, in_time, to_the_end

LENGTH = 3
EXACT = 1e-9
CAUGHT = 1e-3
CAUGHT_ROUNDING = 1e-6  # half precision is wrong by less, and still a thousand times what is exact
WAYS = pytest.mark.parametrize("way", [Verification.TOKEN, Verification.BLOCK])
TARGET, DRAFT = 1, 2
HOT, GREEDY = params_of("hot", "none"), params_of("greedy", "none")
FULL = draft_of(DRAFT, HOT)
TOP = draft_of(DRAFT, HOT, support_size=2)


def error_of(way, drawn=FULL, reported=None, *, params=HOT, gamma="4", step=to_the_end, arrives=in_time, **parts):
    """Return how far the law is from the target's when rounds are run like this."""
    target = rows_of(TARGET, params)
    drafting = Drafting(drawn, reported or drawn, GAMMAS[gamma], step, arrives)
    rounds = Rounds(target, drafting, way, **{"residual_target": target, **parts})
    return distance(rounds.law(LENGTH), target_law(target, LENGTH))


def unnormalised_top(context: Context) -> SparseDistribution:
    q = FULL(context)
    return SparseDistribution(q.token_ids[:2], q.probabilities[:2])


def rows_as_they_came(proposal: Proposal, device: torch.device) -> DraftRows:
    rows = verification.draft_rows(proposal, device)
    sums = torch.tensor([sum(q.probabilities) for q in proposal.draft_distributions] + [1.0], dtype=torch.float64)
    return dataclasses.replace(rows, probabilities=rows.probabilities * sums[:, None])


@WAYS
def test_mass_that_was_not_renormalised(way):
    assert error_of(way, unnormalised_top) < EXACT  # the target divides by the sum itself, as the draw does
    assert error_of(way, unnormalised_top, draft_rows=rows_as_they_came) > CAUGHT


@WAYS
def test_drawn_from_the_likeliest_and_reported_in_full(way):
    assert error_of(way, TOP) < EXACT
    assert error_of(way, TOP, FULL) > CAUGHT


@WAYS
def test_drawn_greedily_and_reported_soft(way):
    greedy = draft_of(DRAFT, GREEDY)
    assert error_of(way, greedy) < EXACT
    assert error_of(way, greedy, FULL) > CAUGHT


@WAYS
def test_drawn_at_one_temperature_and_reported_at_another(way):
    cooler, plain = (draft_of(DRAFT, SamplingParams(temperature=temperature)) for temperature in (0.8, 1.0))
    assert error_of(way, cooler) < EXACT
    assert error_of(way, cooler, plain) > CAUGHT


def in_half_precision(context: Context) -> SparseDistribution:
    q = FULL(context)
    return SparseDistribution(q.token_ids, tuple(torch.tensor(q.probabilities).half().tolist()))


@WAYS
def test_sent_in_half_precision(way):
    assert error_of(way, in_half_precision) < EXACT  # drawn from it as well
    assert error_of(way, FULL, in_half_precision) > CAUGHT_ROUNDING


@WAYS
@pytest.mark.parametrize("option", ["top_k", "top_p", "min_p", "penalties", "bias"])
def test_a_residual_of_the_unprocessed_target(option, way):
    params = params_of("hot", option)
    draft = draft_of(DRAFT, params)
    unprocessed = rows_of(TARGET, SamplingParams(temperature=1.3))
    assert error_of(way, draft, params=params) < EXACT
    assert error_of(way, draft, params=params, residual_target=unprocessed) > CAUGHT


def from_the_target(p, draft, weights, accept_index):
    return p[accept_index], torch.tensor(False)


def of_tokens(p, draft, weights, accept_index):
    return verification.residual_distribution(p, draft, torch.ones_like(weights), accept_index)


@WAYS
def test_a_correction_from_the_target_itself(way):
    assert error_of(way, residual=from_the_target) > CAUGHT


def test_the_residual_of_token_in_block():
    assert error_of(Verification.BLOCK, residual=of_tokens) > CAUGHT
    assert error_of(Verification.TOKEN, residual=of_tokens) < EXACT


UNSURE = 0.35


def drop_unlikely(q: SparseDistribution, token: int) -> Step:
    return Step.GO_ON if q.probabilities[q.token_ids.index(token)] >= UNSURE else Step.STOP_WITHOUT


def stop_after_unlikely(q: SparseDistribution, token: int) -> Step:
    return Step.GO_ON if q.probabilities[q.token_ids.index(token)] >= UNSURE else Step.STOP_WITH


def stop_where_nothing_is_likely(q: SparseDistribution, token: int) -> Step:
    return Step.GO_ON if max(q.probabilities) >= 2 * UNSURE else Step.STOP_WITHOUT


@WAYS
def test_a_proposal_that_ends_early(way):
    assert error_of(way, step=stop_where_nothing_is_likely) < EXACT
    assert error_of(way, step=stop_after_unlikely) < EXACT
    assert error_of(way, step=drop_unlikely) > CAUGHT


def slow_with_a_token(tokens: Context) -> float:
    return 0.0 if 1 in tokens else 1.0


def slow_at_times(tokens: Context) -> float:
    return 0.7


@WAYS
@pytest.mark.parametrize("gamma", ["1", "4"])
def test_a_proposal_dropped_by_the_time_it_took(gamma, way):
    assert error_of(way, gamma=gamma, arrives=slow_at_times) < EXACT
    assert error_of(way, gamma=gamma, arrives=slow_with_a_token) > CAUGHT
    # Greedy is free of it.
    greedy = draft_of(DRAFT, GREEDY)
    assert error_of(way, greedy, params=GREEDY, gamma=gamma, arrives=slow_with_a_token) < EXACT


def test_the_toys_are_no_easy_case():
    """The draft's law is far from the target's, and unlikely and likely tokens both occur."""
    drafted = target_law(rows_of(DRAFT, HOT), LENGTH)
    assert distance(drafted, target_law(rows_of(TARGET, HOT), LENGTH)) > CAUGHT
    assert len(FULL(()).token_ids) == VOCABULARY
