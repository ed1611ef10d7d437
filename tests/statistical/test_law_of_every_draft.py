"""Whatever proposes, the answers have the target's law: over the wire, for every kind of draft.

The prompts repeat themselves, so that a lookup has much to propose, and the answers depart from them, so that much of
it is refused.
"""

import itertools

import pytest
import pytest_asyncio

from tests.in_process import running_services
from tests.statistical.answers import DRAFT, TARGET, WAYS, Cell, answers_of, z_of
from tests.statistical.cases import OPTIONS
from tests.statistical.chi_square import FAILS_ABOVE
from tests.tiny_drafts import write_early_exit
from tests.tiny_models import BYTES, write_tiny_model

REPEATING = (3, 2, 2, 0, 7, 1, 7, 1, 3, 1, 2, 5, 2, 7, 5, 1, 0, 1, 5, 0, 1, 7)  # said by the target


def early_exit(folder):
    """A tiny network, and a draft of its first layer that knows ten of its sixteen tokens."""
    target = write_tiny_model(folder / "target", tokens=BYTES[:14])
    return target, write_early_exit(folder / "draft", target, known=(0, 1, 2, 3, 5, 7, 8, 11, 12, 14)), REPEATING


# By kind: from an empty folder, for models that are written first, to target, draft and a prompt in their tokens.
KINDS = {
    "lookup": lambda folder: (TARGET, "lookup:", REPEATING),
    "composed": lambda folder: (TARGET, f"lookup:{DRAFT}", REPEATING),
    "early_exit": early_exit,
}
ANSWERS, MANY_ANSWERS = 120, 1000

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=KINDS)
async def kind(request, redis_server, tmp_path_factory):
    target, draft, prompt = KINDS[request.param](tmp_path_factory.mktemp("models"))
    async with running_services(redis_server.url, target, draft) as stub:
        yield stub, target, prompt


async def check(kind, names, count):
    stub, target, prompt = kind
    cell = Cell(*names, prompt)
    answers = await answers_of(stub, [cell.request(seed) for seed in range(count)])
    assert z_of(answers.tokens, cell, target) < FAILS_ABOVE
    assert answers.usage["fallbacks"] == 0
    return answers.usage


@pytest.mark.parametrize("way", WAYS)
async def test_the_law_is_the_targets_and_draft_tokens_are_kept_and_refused(kind, way):
    usage = await check(kind, ("hot", "none", way, "4"), ANSWERS)
    assert 0.05 < usage["accepted"] / usage["draft_tokens"] < 0.9
    assert usage["draft_tokens"] > ANSWERS


@pytest.mark.parametrize("way", WAYS)
async def test_the_law_is_the_targets_with_every_option_and_gammas_mixed(kind, way):
    await check(kind, ("cool", "all", way, "mixed"), ANSWERS // 2)


@pytest.mark.long
@pytest.mark.parametrize("names", list(itertools.product(("cool", "hot"), OPTIONS, WAYS, ("4", "mixed"))), ids="-".join)
async def test_the_law_is_the_targets_in_every_cell(kind, names):
    await check(kind, names, MANY_ANSWERS)
