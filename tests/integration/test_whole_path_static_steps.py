"""Static steps over the whole path: sessions that draft together get what they get without."""

import asyncio

import pytest

from tests.in_process import serving_draft, serving_target
from tests.integration.whole_path import BLOCK, COUPLED, TOKEN, whole_path
from tests.tiny_models import write_tiny_model

SESSIONS = 5
WAYS = (TOKEN, BLOCK, COUPLED)

pytestmark = pytest.mark.asyncio


def request(session):
    return {
        "token_ids": range(5, 20 + 50 * session),
        "sampling_params": {"temperature": 0.7, "seed": session, "max_new_tokens": 24, "ignore_eos": True},
        "speculation": {"gamma": 1 + session, "verification": WAYS[session % len(WAYS)]},
    }


async def answers(path):
    found = await asyncio.gather(*[path.answer(**request(session)) for session in range(SESSIONS)])
    assert not any(fallback for answer in found for fallback in answer.fallbacks)
    return [(answer.tokens, answer.rounds) for answer in found]


@pytest.mark.parametrize("ahead_tokens", [0, 8])
async def test_rounds_are_the_same(redis_server, tmp_path, ahead_tokens):
    model = write_tiny_model(tmp_path, context=512)
    settings = {"dtype": "float64", "support_size": 16, "ahead_tokens": ahead_tokens}
    async with (
        serving_target(model, dtype="float64") as target,
        serving_draft(model, **settings) as plain,
        serving_draft(model, static_steps=True, **settings) as static,
        whole_path(redis_server.url, target, plain) as plain_path,
        whole_path(redis_server.url, target, static) as static_path,
    ):
        expected = await answers(plain_path)
        steps = static.servicer.model
        probed = set(steps._replays)
        assert await answers(static_path) == expected
        assert set(steps._replays) > probed
