"""A draft that has fallen behind catches up at once: its acceptance is what it would have been undisturbed.

A draft that is the target itself accepts everything, so a single wrong key or value in its cache shows. A lesser draft
is compared with itself in a fresh session over the same committed tokens.
"""

from contextlib import AsyncExitStack, aclosing

import pytest
import pytest_asyncio

from draft_service.servicer import DraftServicer
from specdec.errors import CacheFull
from specdec.model.kv_arena import TensorCache
from specdec.model.loading import load_model
from specdec.v1 import generation_pb2
from specdec.wire import fence_from_message
from tests.engines import state_of
from tests.in_process import serving_draft, serving_target
from tests.integration.whole_path import BLOCK, COUPLED, TOKEN, whole_path
from tests.tiny_models import VOCABULARY, write_tiny_model

OVERLOADED = generation_pb2.FALLBACK_REASON_DRAFT_OVERLOADED
UNAVAILABLE = generation_pb2.FALLBACK_REASON_DRAFT_UNAVAILABLE
PROMPT = list(b"far behind")
GAMMA = 3
WAYS = {
    "greedy": (TOKEN, {"temperature": 0.0}),
    "token": (TOKEN, {"temperature": 1.0, "seed": 2}),
    "block": (BLOCK, {"temperature": 1.0, "seed": 2}),
    "coupled": (COUPLED, {"temperature": 1.0, "seed": 2}),
}

pytestmark = pytest.mark.asyncio(loop_scope="module")


class DisturbedDraft(DraftServicer):
    """Refuses some calls, and has lost the session's cache at others; calls count from 0."""

    calls = 0
    refused = ()
    lost = ()

    async def Propose(self, request, context):
        call, self.calls = self.calls, self.calls + 1
        if call in self.refused:
            raise CacheFull("no room")
        if call in self.lost:
            await self.engine.release(request.prefix.session_id, fence_from_message(request.prefix.fence), 0)
        return await super().Propose(request, context)

    ProposeStream = Propose


class DriftingCache(TensorCache):
    """Keeps, where tokens were cut, the first of them in place of the one that follows: a trim that is off by one."""

    fed = 0

    def next_rows(self, count):
        rows = super().next_rows(count)
        drifted, self.fed = self.length < self.fed, self.length + count
        scratch = self.start + self.capacity - 1
        return [scratch, *rows[1:]] if drifted else rows


@pytest.fixture(scope="module")
def target_model(tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp("models") / "target", context=1024)


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def target(target_model):
    async with serving_target(target_model, dtype="float64") as target:
        yield target


def disturbed_draft(model, **settings):
    settings = {"servicer_class": DisturbedDraft, "dtype": "float64", "support_size": len(VOCABULARY)} | settings
    return serving_draft(model, **settings)


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def twin(redis_server, target, target_model):
    """The draft is the target itself."""
    async with disturbed_draft(target_model) as draft, whole_path(redis_server.url, target, draft) as path:
        yield path


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def lesser(redis_server, target, target_model):
    """The draft is the target's first layer."""
    async with (
        disturbed_draft(f"layers:1:{target_model}") as draft,
        whole_path(redis_server.url, target, draft) as path,
    ):
        yield path


@pytest.fixture
def disturb(monkeypatch):
    def begin(path, **how):
        for name, value in ({"calls": 0, "refused": (), "lost": ()} | how).items():
            monkeypatch.setattr(path.draft.servicer, name, value, raising=False)

    yield begin
    monkeypatch.undo()


def request(way, limit=32, gamma=GAMMA, **fields):
    verification, params = WAYS[way]
    return {
        "token_ids": PROMPT,
        "sampling_params": params | {"max_new_tokens": limit, "ignore_eos": True},
        "speculation": {"gamma": gamma, "verification": verification},
    } | fields


def rejections(answer):
    """Return the rounds in which a draft token was rejected."""
    return [(gamma, accepted) for gamma, accepted in answer.rounds if accepted < gamma]


@pytest.mark.parametrize("way", WAYS)
async def test_a_draft_that_is_the_target_accepts_everything(twin, way):
    answer = await twin.answer(**request(way, 64))
    assert answer.rounds == [(GAMMA, GAMMA)] * 16


@pytest.mark.parametrize("way", WAYS)
async def test_after_answers_without_speculation(twin, way):
    name = f"without-{way}"
    first = await twin.answer(session_id=name, **request(way))
    await twin.answer(session_id=name, **request(way, 20, gamma=0))
    third = await twin.answer(session_id=name, **request(way))
    assert not rejections(first)
    assert not rejections(third)
    assert third.rounds[0] == (GAMMA, GAMMA)


@pytest.mark.parametrize("way", WAYS)
async def test_after_rounds_without_draft_tokens_and_after_lost_caches(twin, disturb, way):
    refused = ({"refused": range(2, 7)}, {"refused": range(1, 12, 2)})
    for how in (*refused, {"lost": (1, 3, 4)}, {"lost": (0, 5), "refused": (4,)}):
        disturb(twin, **how)
        answer = await twin.answer(**request(way))
        assert answer.fallbacks.count(OVERLOADED) == len(how.get("refused", ()))
        assert not rejections(answer)
        assert sum(gamma > 0 for gamma, _ in answer.rounds) >= 3


@pytest.mark.parametrize("how", [{}, {"refused": range(2, 6)}, {"lost": (1, 2, 5)}, {"refused": (3, 4), "lost": (5,)}])
async def test_a_lesser_draft_accepts_what_it_would_over_the_same_tokens(lesser, disturb, how):
    disturb(lesser, **how)
    answer = await lesser.answer(**request("coupled", 40))
    assert (answer.fallbacks.count(OVERLOADED) > 0) == ("refused" in how)
    disturb(lesser)
    assert await undisturbed(lesser, answer) == speculated(answer)
    assert rejections(answer)
    assert answer.usage.spec_accepted_tokens > 0


async def test_a_cache_that_is_off_by_one_would_be_seen(redis_server, target, target_model, disturb):
    model = load_model(f"layers:1:{target_model}", dtype="float64")
    async with disturbed_draft("drifting", loaded=model) as draft, whole_path(redis_server.url, target, draft) as path:
        plain = await path.answer(**request("coupled", 40, gamma=0))
        model.new_cache = lambda: DriftingCache(model.arena)
        answer = await path.answer(**request("coupled", 40))
        del model.new_cache
        assert answer.tokens == plain.tokens
        assert await undisturbed(path, answer) != speculated(answer)


def speculated(answer):
    """Return (tokens before, draft tokens, kept) of the rounds that speculated."""
    rounds = [(event.index, event.round.gamma, event.round.accept_index) for event in answer.events]
    return [each for each in rounds if each[1]]


async def undisturbed(path, answer):
    """Return the same of fresh sessions that begin with the tokens before each round."""
    found = []
    for before, gamma, _ in speculated(answer):
        fresh = request("coupled", gamma + 1, token_ids=[*PROMPT, *answer.tokens[:before]])
        found.append((before, *(await path.answer(**fresh)).rounds[0]))
    return found


async def test_after_evictions_within_and_between_answers(redis_server, target, target_model):
    async with (
        disturbed_draft(target_model, cache_tokens=256, session_idle_seconds=0) as draft,
        whole_path(redis_server.url, target, draft) as path,
    ):
        requests = [request(way, 40, session_id=f"crowded-{way}", token_ids=[*PROMPT, len(way)]) for way in WAYS]
        first = await path.answers(requests)
        again = await path.answers(requests)
        assert (await state_of(draft.servicer.engine)).evictions > len(WAYS)
        answers = [*first, *again]
        assert not [each for answer in answers for each in rejections(answer)]
        assert sum(gamma > 0 for answer in answers for gamma, _ in answer.rounds) > len(answers)


async def test_evictions_of_the_target_change_no_text(redis_server, twin, target_model):
    async with (
        serving_target(target_model, dtype="float64", cache_tokens=256, session_idle_seconds=0) as crowded,
        whole_path(redis_server.url, crowded, twin.draft) as path,
    ):
        for turn in range(2):  # each answer needs the room of the one before
            for way in WAYS:
                asked = request(way, 16, session_id=f"target-{way}")
                expected, found = (
                    await twin.answer(**asked),
                    await path.answer(**asked | {"session_id": f"small-{way}"}),
                )
                assert (found.tokens, found.rounds) == (expected.tokens, expected.rounds)
            assert (await state_of(crowded.servicer.engine)).evictions >= len(WAYS) * (turn + 1) - 1


@pytest.mark.parametrize("prompt_length", [250, 505, 760])
async def test_acceptance_does_not_fall_with_the_length(twin, prompt_length):
    prompt = [place * 7 % 250 for place in range(prompt_length)]
    answer = await twin.answer(**request("block", 32, token_ids=prompt))
    assert answer.rounds == [(GAMMA, GAMMA)] * 8


async def test_after_a_restart_of_the_draft_in_the_middle_of_an_answer(redis_server, target, target_model, held_port):
    model = load_model(target_model, dtype="float64")
    async with AsyncExitStack() as stack:
        former = AsyncExitStack()
        draft = await former.enter_async_context(disturbed_draft("twin", loaded=model, port=held_port))
        path = await stack.enter_async_context(whole_path(redis_server.url, target, draft))
        events = await stack.enter_async_context(aclosing(path.events(**request("block", 200))))
        rounds = [(await anext(events)).round for _ in range(5)]
        await former.aclose()
        while rounds[-1].fallback != UNAVAILABLE:
            rounds.append((await anext(events)).round)
        await stack.enter_async_context(disturbed_draft("twin", loaded=model, port=held_port))
        drafts = path.coordinator.fleet.drafts
        await drafts.wait_for(drafts.usable, 60)  # meanwhile nothing is read, which holds the answer up
        after = []
        async for event in events:
            rounds.append(event.round)
            after = [*after, event.round] if event.round.gamma else []
            if len(after) == 5:
                break
        assert [(each.gamma, each.accept_index) for each in after] == [(GAMMA, GAMMA)] * 5
        assert not [each for each in rounds if each.accept_index < each.gamma]
