"""Services with a part that is broken: the answers show it. What the target must refuse harms nothing."""

import pytest
import torch

from draft_service import drafting
from specdec import verification
from specdec.errors import NumericalFailure
from specdec.proposal import SparseDistribution
from specdec.sampling import distributions
from target_service import verifying
from tests.in_process import running_services
from tests.statistical.answers import DRAFT, TARGET, Cell, answers_of, z_of
from tests.statistical.chi_square import FAILS_ABOVE

ANSWERS = 100
TOKEN, BLOCK = Cell("hot", "none", "token", "4"), Cell("hot", "none", "block", "4")


async def asked(redis_url, cell, count=ANSWERS):
    async with running_services(redis_url, TARGET, DRAFT) as stub:
        return await answers_of(stub, [cell.request(seed) for seed in range(count)])


def correction_from_p(p, draft, weights, accept_index):
    return p[accept_index], torch.tensor(False)


def draw_the_likeliest(weights, uniforms):
    return weights.argmax(dim=-1)


def name_other_tokens(token_ids, probabilities):
    return SparseDistribution(tuple(token + 8 for token in token_ids), probabilities)


@pytest.mark.parametrize("cell", [TOKEN, BLOCK], ids=["token", "block"])
async def test_control_corrections_that_ignore_the_draft_are_seen(redis_url, monkeypatch, cell):
    monkeypatch.setattr(verification, "residual_distribution", correction_from_p)
    assert z_of((await asked(redis_url, cell)).tokens, cell) > FAILS_ABOVE


async def test_control_a_draft_that_draws_otherwise_than_it_says_is_seen(redis_url, monkeypatch):
    monkeypatch.setattr(drafting, "inverse_cdf", draw_the_likeliest)
    monkeypatch.setattr(verifying, "check_draws", lambda *_: None)
    assert z_of((await asked(redis_url, TOKEN)).tokens, TOKEN) > FAILS_ABOVE


async def test_a_draft_that_says_other_than_it_drew_from_is_refused_and_harms_nothing(redis_url, monkeypatch):
    monkeypatch.setattr(drafting, "SparseDistribution", name_other_tokens)
    answers = await asked(redis_url, TOKEN)
    assert z_of(answers.tokens, TOKEN) < FAILS_ABOVE
    assert answers.usage["fallbacks"] > 0


async def test_control_the_law_of_other_parameters_is_another(redis_url):
    answers = await asked(redis_url, TOKEN)
    assert z_of(answers.tokens, TOKEN) < FAILS_ABOVE
    assert z_of(answers.tokens, Cell("hot", "penalties", "token", "4")) > FAILS_ABOVE


def fail_after_7(logits, rows):
    """Process logits like ``distributions``, of a draft that breaks whenever the token before is 7."""
    failing = [[[*row.committed, *row.drafted][-1] == 7] for row in rows]
    return distributions(logits.masked_fill(torch.tensor(failing), torch.nan), rows)


@pytest.mark.parametrize("cell", [TOKEN, BLOCK], ids=["token", "block"])
async def test_a_draft_that_breaks_after_some_tokens_harms_nothing(redis_url, monkeypatch, cell):
    monkeypatch.setattr(drafting, "distributions", fail_after_7)
    answers = await asked(redis_url, cell, 600)
    assert z_of(answers.tokens, cell) < FAILS_ABOVE
    assert answers.usage["fallbacks"] == 0


async def test_control_proposals_lost_by_what_their_tokens_are_would_be_seen(redis_url, monkeypatch):
    monkeypatch.setattr(drafting, "distributions", fail_after_7)
    monkeypatch.setattr(drafting.Draft, "guess", lambda _: NumericalFailure("not finite"))
    answers = await asked(redis_url, TOKEN, 600)
    assert answers.usage["fallbacks"] > 0
    assert z_of(answers.tokens, TOKEN) > FAILS_ABOVE
