"""Drafts of what followed before, alone and before a model, over the whole path."""

from contextlib import AsyncExitStack, aclosing

import pytest
import pytest_asyncio

from draft_service.servicer import DraftServicer
from specdec.v1 import common_pb2, generation_pb2
from tests.engines import state_of
from tests.in_process import serving_draft, serving_target
from tests.integration.whole_path import BLOCK, COUPLED, SERVING, TOKEN, whole_path
from tests.tiny_models import VOCABULARY, write_tiny_model

UNAVAILABLE = generation_pb2.FALLBACK_REASON_DRAFT_UNAVAILABLE
OUTGROWN = generation_pb2.FALLBACK_REASON_DRAFT_CONTEXT
OVERLOADED = generation_pb2.FALLBACK_REASON_DRAFT_OVERLOADED
REPEATING = "synthetic:vocabulary=64,seed=1"  # its greedy answers go round in circles
PROMPT = [byte % 64 for byte in b"the cat and the dog and the cat and the "] * 3
GAMMA = 4
DRAFTS = {"alone": "lookup:", "composed": f"lookup:{REPEATING},agreement=0.7"}

pytestmark = pytest.mark.asyncio(loop_scope="module")


class CountingDraft(DraftServicer):
    """Notes how much each call carried."""

    def __init__(self, settings, registry):
        super().__init__(settings, registry)
        self.calls = []

    async def Propose(self, request, context):
        response = await super().Propose(request, context)
        self.calls.append((request.prefix.start, len(request.prefix.tokens)))
        return response

    ProposeStream = Propose


def draft_of(kind, **settings):
    return serving_draft(DRAFTS[kind], servicer_class=CountingDraft, **settings)


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def target():
    async with serving_target(REPEATING) as target:
        yield target


@pytest_asyncio.fixture(loop_scope="module", scope="module", params=DRAFTS)
async def path(request, redis_server, target):
    async with draft_of(request.param) as draft, whole_path(redis_server.url, target, draft) as path:
        yield path


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def tiny_path(redis_server, tmp_path_factory):
    """The model after the lookup is the target itself, with a real cache: where it is asked it is always right."""
    model = write_tiny_model(tmp_path_factory.mktemp("models") / "target", context=512)
    async with (
        serving_target(model, dtype="float64") as target,
        serving_draft(f"lookup:{model}", dtype="float64", support_size=len(VOCABULARY)) as draft,
        whole_path(redis_server.url, target, draft) as path,
    ):
        yield path


def request(verification=BLOCK, gamma=GAMMA, limit=60, **fields):
    params = {"temperature": 0.0} | fields.pop("params", {})
    return {
        "token_ids": PROMPT,
        "sampling_params": params | {"max_new_tokens": limit, "ignore_eos": True},
        "speculation": {"gamma": gamma, "verification": verification},
    } | fields


@pytest.mark.parametrize("verification", [TOKEN, BLOCK, COUPLED])
async def test_greedy_text_is_the_targets_own_and_much_of_it_is_proposed(path, verification):
    plain = await path.answer(**request(gamma=0))
    answer = await path.answer(**request(verification))
    assert answer.tokens == plain.tokens
    assert answer.usage.spec_accepted_tokens > len(answer.tokens) // 4
    assert not any(answer.fallbacks)


async def test_coupled_text_is_the_same_as_without_a_draft(path):
    for seed in range(3):
        how = {"params": {"temperature": 0.8, "seed": seed}}
        plain = await path.answer(**request(COUPLED, gamma=0, **how))
        answer = await path.answer(**request(COUPLED, **how))
        assert answer.tokens == plain.tokens
        assert not any(answer.fallbacks)


@pytest.mark.parametrize("verification", [TOKEN, BLOCK])
async def test_sampled_rounds_pass_the_targets_check_and_repeat(path, verification):
    how = {"params": {"temperature": 1.0, "seed": 4}}
    answers = await path.answers([request(verification, **how)] * 3)
    assert answers[0].tokens == answers[1].tokens == answers[2].tokens
    assert not any(fallback for answer in answers for fallback in answer.fallbacks)
    assert answers[0].usage.spec_draft_tokens > 0


@pytest.mark.parametrize("verification", [TOKEN, BLOCK, COUPLED])
@pytest.mark.parametrize("params", [{}, {"temperature": 0.7, "seed": 1}], ids=["greedy", "sampled"])
async def test_a_model_after_a_lookup_catches_up_with_what_it_was_not_fed(tiny_path, params, verification):
    """Words that come again are what the lookup has; wherever it proposes and errs, the model goes on from there."""
    answer = await tiny_path.answer(**request(verification, params=params))
    kept = sum(accepted for _, accepted in answer.rounds)
    assert kept > sum(gamma for gamma, _ in answer.rounds) // 4
    fresh = await tiny_path.answer(**request(verification, params=params))
    assert (fresh.tokens, fresh.rounds) == (answer.tokens, answer.rounds)
    if verification is COUPLED or not params:
        assert answer.tokens == (await tiny_path.answer(**request(verification, gamma=0, params=params))).tokens


async def test_a_round_sends_what_is_new_alone(path):
    path.draft.servicer.calls.clear()
    await path.answer(**request())
    (start, sent), *others = path.draft.servicer.calls
    assert (start, sent) == (0, len(PROMPT))
    assert len(others) > 5
    assert all(0 < sent <= GAMMA + 1 for _, sent in others)


async def test_the_draft_is_known_by_its_name_and_sessions_go_when_they_are_deleted(path):
    info = await path.coordinator.stub.GetModelInfo(common_pb2.GetModelInfoRequest())
    assert info.draft.name.startswith("lookup:")
    assert info.draft.context_length > 0
    lookups = path.draft.servicer._drafts._lookups
    name = (await path.answer(**request(limit=8))).last.session_id
    assert name in lookups._lookups
    await path.caches_released()
    await path.coordinator.stub.DeleteSession(generation_pb2.DeleteSessionRequest(session_id=name))
    assert name not in lookups._lookups
    assert path.draft.cached(name) == []


async def test_a_session_continues_from_what_is_held(path):
    path.draft.servicer.calls.clear()
    first = await path.answer(**request(limit=20))
    await path.caches_released()
    name = first.last.session_id
    again = await path.answer(**request(limit=20, token_ids=PROMPT[:9], session_id=name))
    assert again.usage.spec_accepted_tokens > 0
    # What was held is cut where the answer ended and asked for anew, once.
    assert [start for start, _ in path.draft.servicer.calls].count(0) == 2


@pytest.mark.parametrize("kind", DRAFTS)
async def test_a_restart_of_the_draft_in_mid_answer_costs_speed_alone(redis_server, target, kind, held_port):
    async with AsyncExitStack() as stack:
        former = AsyncExitStack()
        draft = await former.enter_async_context(draft_of(kind, port=held_port))
        path = await stack.enter_async_context(whole_path(redis_server.url, target, draft))
        plain = await path.answer(**request(gamma=0, limit=120))
        events = await stack.enter_async_context(aclosing(path.events(**request(limit=120))))
        shown = [await anext(events) for _ in range(4)]
        await former.aclose()
        while shown[-1].round.fallback != UNAVAILABLE:
            shown.append(await anext(events))
        second = await stack.enter_async_context(draft_of(kind, port=held_port))
        drafts = path.coordinator.fleet.drafts
        await drafts.wait_for(drafts.usable, 60)  # meanwhile nothing is read, which holds the answer up
        shown += [event async for event in events]
        assert [token for event in shown for token in event.token_ids] == plain.tokens
        assert shown[-2].round.accept_index > 0
        assert second.servicer.calls[0][0] == 0
        assert all(start > 0 for start, _ in second.servicer.calls[1:])


async def test_a_session_ends_speculating_where_the_lookup_has_no_room(redis_server, target):
    room = len(PROMPT) + 20
    async with (
        draft_of("alone", cache_tokens=room) as draft,
        whole_path(redis_server.url, target, draft) as path,
    ):
        answer = await path.answer(**request(session_id="large"))
        kinds = [OUTGROWN if event.index + len(PROMPT) > room + 1 else 0 for event in answer.events]
        assert answer.fallbacks[:-1] == kinds[:-1]  # the last round has no room in the answer
        assert OUTGROWN in kinds
        await path.caches_released()
        other = await path.answer(**request(limit=8, session_id="other"))  # the finished one makes room
        assert not any(other.fallbacks)
        assert (await state_of(draft.servicer.engine)).evictions == 1


async def test_nothing_is_ever_fed_to_a_lookup(path):
    before = await state_of(path.draft.servicer.engine)
    alone = path.draft.servicer.settings.model == "lookup:"
    await path.answer(**request(limit=12))
    assert ((await state_of(path.draft.servicer.engine)).passes == before.passes == 0) == alone


async def test_a_lookup_fits_any_target(redis_server):
    async with (
        serving_target("synthetic:seed=1,vocabulary=100") as target,
        draft_of("alone") as draft,
        whole_path(redis_server.url, target, draft) as path,
    ):
        answer = await path.answer(**request())
        assert not any(answer.fallbacks)
        assert await path.health() == SERVING
