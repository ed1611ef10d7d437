"""Quantised models over the wire: the law is the quantised target's, and a target keeps all that it drafts itself."""

import pytest

from specdec.model.loading import load_model
from tests.in_process import running_services
from tests.statistical.answers import WAYS, Cell, answers_of, z_of
from tests.statistical.chi_square import FAILS_ABOVE
from tests.tiny_models import BYTES, write_tiny_model

KINDS = ("float16", "int8")
PROMPT = (3, 1, 4, 1, 5)
ANSWERS, MANY_ANSWERS = 60, 500


@pytest.fixture(params=KINDS)
def kind(request, monkeypatch):
    monkeypatch.setenv("TARGET_QUANTIZATION", request.param)
    monkeypatch.setenv("DRAFT_QUANTIZATION", request.param)
    return request.param


async def check(folder, redis_url, kind, ways, count):
    target = write_tiny_model(folder, tokens=BYTES[:14])
    law = load_model(target, "cpu", "auto", kind)
    async with running_services(redis_url, target, f"layers:1:{target}") as stub:
        for way in ways:
            cell = Cell("hot", "none", way, "mixed", PROMPT)
            answers = await answers_of(stub, [cell.request(seed) for seed in range(count)])
            assert z_of(answers.tokens, cell, law) < FAILS_ABOVE
            assert answers.usage["fallbacks"] == 0
            assert 0.05 < answers.usage["accepted"] / answers.usage["draft_tokens"] < 0.95


async def test_the_law_is_the_quantised_targets(tmp_path, redis_url, kind):
    await check(tmp_path, redis_url, kind, ["block"], ANSWERS)


@pytest.mark.long
async def test_the_law_is_the_quantised_targets_in_every_way(tmp_path, redis_url, kind):
    await check(tmp_path, redis_url, kind, WAYS, MANY_ANSWERS)


async def test_every_token_of_a_target_that_drafts_for_itself_stands(tmp_path, redis_url, kind):
    """The draft feeds one token a pass and the target five: the numbers must not depend on that."""
    target = write_tiny_model(tmp_path, tokens=BYTES[:14])
    cell = Cell("hot", "none", "token", "4", PROMPT)
    async with running_services(redis_url, target, target) as stub:
        usage = (await answers_of(stub, [cell.request(seed) for seed in range(ANSWERS)])).usage
    assert usage["draft_tokens"] > 2 * ANSWERS
    assert usage["accepted"] == usage["draft_tokens"]
