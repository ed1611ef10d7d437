"""Answers of the three services have the target's law, under every two options of the grid together.

Seeds are fixed, so a run repeats exactly; the threshold was fixed beforehand. The synthetic model's law is exact.
"""

import itertools

import pytest
import pytest_asyncio

from tests.in_process import running_services
from tests.statistical.answers import DRAFT, GAMMAS, TARGET, WAYS, Cell, answers_of, z_of
from tests.statistical.cases import OPTIONS, TEMPERATURES, pairwise
from tests.statistical.chi_square import FAILS_ABOVE

GRID = (tuple(TEMPERATURES), tuple(OPTIONS), tuple(WAYS), ("1", "4", "mixed"))
ANSWERS, MANY_ANSWERS = 120, 300
GREEDY_ANSWERS = 12  # they are all the same

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stub(redis_server):
    async with running_services(redis_server.url, TARGET, DRAFT) as stub:
        yield stub


async def check(stub, cell: Cell, count: int):
    greedy = cell.temperature == "greedy"
    answers = await answers_of(stub, [cell.request(seed) for seed in range(GREEDY_ANSWERS if greedy else count)])
    assert (len(answers.tokens) == 1) == greedy
    assert z_of(answers.tokens, cell) < FAILS_ABOVE
    assert answers.usage["fallbacks"] == 0
    assert (answers.usage["draft_tokens"] > 0) == (GAMMAS[cell.gamma] != (0,))
    return answers


@pytest.mark.parametrize("names", pairwise(*GRID), ids="-".join)
async def test_the_law_is_the_targets(stub, names):
    await check(stub, Cell(*names), ANSWERS)


@pytest.mark.parametrize("way", WAYS)
async def test_draft_tokens_are_kept_and_refused(stub, way):
    usage = (await check(stub, Cell("hot", "none", way, "4"), 40)).usage
    assert 0.1 < usage["accepted"] / usage["draft_tokens"] < 0.9  # far from either end


async def test_the_law_is_the_targets_without_speculation(stub):
    await check(stub, Cell("cool", "penalties", "token", "0"), ANSWERS)


@pytest.mark.long
@pytest.mark.parametrize("names", list(itertools.product(*GRID)), ids="-".join)
async def test_the_law_is_the_targets_in_every_cell(stub, names):
    await check(stub, Cell(*names), MANY_ANSWERS)
