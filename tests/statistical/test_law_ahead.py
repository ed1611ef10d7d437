"""With drafts that were made ahead of their calls the answers have the target's law: over the wire, for every way.

The target takes its time over a pass, so that the draft has some to itself. That the answers are the very same with and
without it is shown where there is no wire (``test_drafting_ahead``), and what the law's test can see is shown by
``test_wire_controls``.
"""

import itertools

import pytest
import torch

from draft_service import drafting
from draft_service.foresight import Foresight
from specdec.draws import Purpose, uniform
from tests.in_process import running_services
from tests.statistical.answers import DRAFT, TARGET, WAYS, Cell, answers_of, z_of
from tests.statistical.cases import OPTIONS
from tests.statistical.chi_square import FAILS_ABOVE

ANSWERS, MANY_ANSWERS = 100, 600
SLOW = f"{TARGET},pass_ms=4"


@pytest.fixture
def found(monkeypatch):
    """Draft tokens that were there, of each call for whose session something had been drafted ahead."""
    found = []
    monkeypatch.setattr(Foresight, "count", lambda _, used: found.append(used))
    return found


async def asked(redis_url, cell, count):
    async with running_services(redis_url, SLOW, DRAFT, ahead_tokens=128) as stub:
        return await answers_of(stub, [cell.request(seed) for seed in range(count)])


async def check(redis_url, cell, count):
    answers = await asked(redis_url, cell, count)
    assert z_of(answers.tokens, cell) < FAILS_ABOVE
    assert answers.usage["fallbacks"] == 0


@pytest.mark.parametrize(
    "names",
    [("hot", "none", "token", "4"), ("cool", "all", "block", "mixed"), ("hot", "none", "coupled", "4")],
    ids="-".join,
)
async def test_the_law_is_the_targets_with_drafts_that_were_there(redis_server, found, names):
    await check(redis_server.url, Cell(*names), ANSWERS)
    assert any(found)  # how many is a matter of speed


def draws_of_the_round_before(drafts, device):
    """Draw as ``drafting`` does, but a draft ahead with the round of the call that it was made after."""
    keys = [(draft.params.seed, draft.prefix.base_length, draft.position) for draft in drafts]
    return torch.tensor([uniform(*key, Purpose.DRAFT) for key in keys], dtype=torch.float64, device=device)


@pytest.mark.parametrize("way", ["token", "block"])
async def test_control_draws_of_another_round_are_refused(redis_server, monkeypatch, found, way):
    monkeypatch.setattr(drafting, "_draft_draws", draws_of_the_round_before)
    answers = await asked(redis_server.url, Cell("hot", "none", way, "4"), 40)
    assert answers.usage["fallbacks"] > 0
    assert any(found)


@pytest.mark.long
@pytest.mark.parametrize("names", list(itertools.product(("cool", "hot"), OPTIONS, WAYS, ("4", "mixed"))), ids="-".join)
async def test_the_law_is_the_targets_in_every_cell(redis_server, found, names):
    await check(redis_server.url, Cell(*names), MANY_ANSWERS)
    assert any(found)  # how many is a matter of speed
