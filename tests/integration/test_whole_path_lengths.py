"""Lengths over the whole path: gamma keeps to both contexts, and answers end exactly at their limits."""

import pytest
import pytest_asyncio

from specdec.v1 import generation_pb2
from tests.integration.whole_path import COUPLED, LENGTH, TOKEN, whole_path_of

TARGET_CONTEXT, DRAFT_CONTEXT = 48, 24
TARGET = f"synthetic:seed=1,order=3,context={TARGET_CONTEXT}"
DRAFT = f"synthetic:seed=1,order=3,agreement=0.7,context={DRAFT_CONTEXT}"
OUTGROWN = generation_pb2.FALLBACK_REASON_DRAFT_CONTEXT

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def path(redis_server):
    async with whole_path_of(redis_server.url, TARGET, DRAFT) as path:
        yield path


def request(prompt_length, gamma, limit=None, *, first=1, verification=TOKEN, **params):
    params = {"temperature": 0.0, "ignore_eos": True, "max_new_tokens": limit or 500} | params
    return {
        "token_ids": [first, *range(100, 99 + prompt_length)],
        "sampling_params": params,
        "speculation": {"gamma": gamma, "verification": verification},
    }


@pytest.mark.parametrize("gamma", [1, 2, 4, 7])
async def test_past_the_drafts_context_the_answer_goes_on_without_draft_tokens(path, gamma):
    plain = await path.answer(**request(10, 0))
    answer = await path.answer(**request(10, gamma))
    assert answer.tokens == plain.tokens
    base_length = 10
    for event in answer.events:
        room = max(0, DRAFT_CONTEXT - base_length + 1)  # the last draft token is never fed to the draft
        assert event.round.gamma == min(gamma, room, TARGET_CONTEXT - base_length - 1)
        wanted = TARGET_CONTEXT - base_length > 1
        assert event.round.fallback == (OUTGROWN if wanted and not room else 0)
        base_length += len(event.token_ids)
    assert OUTGROWN in answer.fallbacks


@pytest.mark.parametrize("verification", [TOKEN, COUPLED])
async def test_a_session_past_the_drafts_context_leaves_the_others_their_speed_and_text(path, verification):
    short = [
        request(4, 4, 16, first=first, verification=verification, temperature=1.0, seed=first) for first in range(6)
    ]
    long = [request(DRAFT_CONTEXT - 1 + late, 4, first=50 + late) for late in range(4)]
    alone = [await path.answer(**each) for each in short]
    together = await path.answers([*long, *short, *long])
    for before, beside in zip(alone, together[len(long) :], strict=False):
        assert beside.tokens == before.tokens
        assert beside.rounds == before.rounds
        assert not any(beside.fallbacks)
    assert all(OUTGROWN in answer.fallbacks for answer in together[: len(long)])


@pytest.mark.parametrize("gamma", [0, 1, 3, 4, 16])
@pytest.mark.parametrize("prompt_length", [1, 20, 21, 22, 23, 24, 25, 26, TARGET_CONTEXT - 2, TARGET_CONTEXT - 1])
async def test_an_answer_fills_the_targets_context_exactly(path, gamma, prompt_length):
    answer = await path.answer(**request(prompt_length, gamma))
    assert len(answer.tokens) == TARGET_CONTEXT - prompt_length == answer.usage.completion_tokens
    assert (answer.last.finish_reason, answer.last.session_length) == (LENGTH, TARGET_CONTEXT)


@pytest.mark.parametrize("prompt_length", [TARGET_CONTEXT, TARGET_CONTEXT + 1, 5 * TARGET_CONTEXT])
async def test_a_prompt_that_leaves_no_room_is_refused_by_name(path, prompt_length):
    answer, error = await path.failure(**request(prompt_length, 4))
    assert (answer.events, error.reason, error.field) == ([], "INVALID_PARAMETER", "token_ids")


async def test_a_full_session_is_not_continued_and_stays_as_it_is(path):
    full = await path.answer(session_id="full", **request(30, 4))
    _, error = await path.failure(session_id="full", **request(1, 4))
    assert (error.reason, error.field) == ("INVALID_PARAMETER", "token_ids")
    session = await path.session("full")
    assert (session.state, len(session.token_ids)) == (generation_pb2.SESSION_STATE_FINISHED, TARGET_CONTEXT)
    assert list(session.token_ids[30:]) == full.tokens


@pytest.mark.parametrize("gamma", [0, 1, 4])
async def test_the_limit_of_new_tokens_holds_exactly(path, gamma):
    for verification in (TOKEN, COUPLED):
        for limit in range(1, gamma + 3):
            answer = await path.answer(**request(5, gamma, limit, verification=verification, temperature=1.0, seed=3))
            assert len(answer.tokens) == limit == answer.usage.completion_tokens
            assert (answer.last.finish_reason, answer.last.session_length) == (LENGTH, 5 + limit)
            assert answer.rounds[0][0] == min(gamma, limit - 1)


async def test_a_session_at_the_targets_limit_changes_nobody_elses_text(path):
    sampled = {"verification": COUPLED, "temperature": 1.0, "seed": 7}
    others = [request(6, gamma, 20, first=30 + gamma, **sampled) for gamma in (0, 1, 4)]
    alone = [await path.answer(**each) for each in others]
    ending = [request(TARGET_CONTEXT - left, 4, first=60 + left) for left in range(1, 6)]
    together = await path.answers([*ending, *others, *ending])
    for before, beside in zip(alone, together[len(ending) :], strict=False):
        assert (beside.tokens, beside.rounds) == (before.tokens, before.rounds)
