"""Numbers over the whole path: log-probabilities, parameters at every draft position, and rows that are not finite."""

import asyncio
import math
from dataclasses import replace
from itertools import product

import pytest
import pytest_asyncio
import torch

from specdec.model.loading import load_model
from specdec.v1 import generation_pb2
from specdec.verification import verify
from target_service import verifying
from tests.in_process import serving_draft, serving_target
from tests.integration.whole_path import BLOCK, COUPLED, LENGTH, SERVING, TOKEN, whole_path, whole_path_of

TARGET, DRAFT = "synthetic:seed=1,order=3,vocabulary=128", "synthetic:seed=1,order=3,vocabulary=128,agreement=0.6"
ILL = 99  # sessions that begin with this token can fall ill
# Of few tokens, so that the same ones come again within a block.
NARROW_TARGET, NARROW_DRAFT = (f"synthetic:seed=1,order=3,vocabulary=20{rest}" for rest in ("", ",agreement=0.6"))
SOURCES = {
    generation_pb2.TOKEN_SOURCE_ACCEPTED,
    generation_pb2.TOKEN_SOURCE_CORRECTION,
    generation_pb2.TOKEN_SOURCE_BONUS,
    generation_pb2.TOKEN_SOURCE_TARGET_ONLY,
}
PENALTIES = {
    "repetition": {"repetition_penalty": 1.8},
    "rewarded repetition": {"repetition_penalty": 0.6},
    "presence": {"presence_penalty": 1.5},
    "frequency": {"frequency_penalty": 1.2},
    "rewarded frequency": {"frequency_penalty": -1.0},
    "bias": {"logit_bias": {2: 4.0, 4: -4.0, 5: 3.0}},
    "all": {
        "repetition_penalty": 1.3,
        "presence_penalty": 0.7,
        "frequency_penalty": 0.4,
        "logit_bias": {5: 2.0},
        "min_new_tokens": 9,
    },
}

pytestmark = pytest.mark.asyncio(loop_scope="module")


class FallingIll:
    """A model that gives bad numbers for some sessions, while it is ill and from a length on."""

    def __init__(self, model):
        self._model = model
        self.bad = None  # changes a row of logits
        self.from_length = 0

    def __getattr__(self, name):
        return getattr(self._model, name)

    def forward(self, segments):
        logits = [each.clone() for each in self._model.forward(segments)]
        for segment, rows in zip(segments, logits, strict=True):
            if self.bad and segment.cache.tokens[0] == ILL and len(rows) and segment.cache.length >= self.from_length:
                self.bad(rows[-1])
        return logits


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def path(redis_server):
    async with (
        serving_target(TARGET, loaded=FallingIll(load_model(TARGET))) as target,
        serving_draft(DRAFT, loaded=FallingIll(load_model(DRAFT))) as draft,
        whole_path(redis_server.url, target, draft) as path,
    ):
        yield path


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def narrow(redis_server):
    async with whole_path_of(redis_server.url, NARROW_TARGET, NARROW_DRAFT) as path:
        yield path


@pytest.fixture
def fall_ill(path, monkeypatch):
    def begin(server, bad, from_length=0):
        monkeypatch.setattr(server.servicer.model, "bad", bad)
        monkeypatch.setattr(server.servicer.model, "from_length", from_length)

    yield begin
    monkeypatch.undo()


def request(gamma, verification=TOKEN, *, first=1, **params):
    return {
        "token_ids": [first, 2, 3],
        "sampling_params": {"temperature": 1.0, "seed": 4, "max_new_tokens": 24, "ignore_eos": True} | params,
        "speculation": {"gamma": gamma, "verification": verification},
    }


@pytest.mark.parametrize("params", [{}, {"temperature": 0.0}, PENALTIES["all"] | {"top_k": 9, "temperature": 1.4}])
@pytest.mark.parametrize("verification", [TOKEN, BLOCK, COUPLED])
async def test_logprobs_are_of_the_unprocessed_logits_wherever_a_token_came_from(path, verification, params):
    model, sources = load_model(TARGET), set()
    for gamma in range(5):
        answer = await path.answer(**request(gamma, verification, logprobs=5, **params))
        assert [each.token_id for each in answer.logprobs] == answer.tokens
        for place, each in enumerate(answer.logprobs):
            law = model.law([1, 2, 3, *answer.tokens[:place]])
            assert each.logprob == pytest.approx(law[each.token_id].log().item(), abs=1e-5)
            best = torch.topk(law, 5)
            assert [top.token_id for top in each.top] == best.indices.tolist()
            assert [top.logprob for top in each.top] == pytest.approx(best.values.log().tolist(), abs=1e-5)
        sources.update(answer.sources)
    assert sources == SOURCES


async def test_logprobs_end_with_the_answer(path):
    free = await path.answer(**request(0, COUPLED))
    for limit in range(1, 8):
        answer = await path.answer(**request(4, COUPLED, logprobs=0, max_new_tokens=limit))
        assert [each.token_id for each in answer.logprobs] == free.tokens[:limit]
        assert not any(each.top for each in answer.logprobs)


@pytest.mark.parametrize("name", PENALTIES)
async def test_parameters_count_every_token_before_a_draft_position(narrow, name):
    mattered = 0
    for first, way in product((1, 6, 9), ({"temperature": 0.0}, {})):
        free = await narrow.answer(**request(0, COUPLED, first=first, **way))
        plain = await narrow.answer(**request(0, COUPLED, first=first, **PENALTIES[name], **way))
        mattered += plain.tokens != free.tokens
        for gamma in (1, 4):
            answer = await narrow.answer(**request(gamma, COUPLED, first=first, **PENALTIES[name], **way))
            assert answer.tokens == plain.tokens
            assert {drafted for drafted, _ in answer.rounds[:-4]} == {gamma}
    assert mattered > 2


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("params", [{"temperature": 0.0}, {"top_k": 5, "top_p": 0.9}, {"logprobs": 2}])
async def test_bad_numbers_fail_their_session_alone_without_a_token(path, fall_ill, params, value):
    others = [request(gamma, COUPLED, first=10 + gamma) for gamma in (0, 1, 4)]
    before = [answer.tokens for answer in await path.answers(others)]
    ill = request(4, TOKEN, first=ILL, **params)
    for bad_from in (0, 9):  # at the prefill, and in the middle

        def bad(row):
            row[3 if value != -math.inf else slice(None)] = value

        fall_ill(path.target, bad, bad_from)
        failing = path.failure(session_id=f"ill-{value}-{bad_from}-{len(params)}-{'logprobs' in params}", **ill)
        (answer, error), *beside = await asyncio.gather(failing, *(path.answer(**each) for each in others))
        assert (error.code, error.reason) == ("INTERNAL", "NUMERICAL_FAILURE")
        assert bool(answer.tokens) == bool(bad_from)
        assert 3 + len(answer.tokens) <= max(3, bad_from)
        assert [answer.tokens for answer in beside] == before
        assert await path.health() == SERVING


@pytest.mark.parametrize("how", ["continued", "resumed"])
async def test_a_session_that_failed_goes_on_once_the_model_is_well(path, fall_ill, monkeypatch, how):
    ill = request(4, COUPLED, first=ILL)
    well = await path.answer(**ill)
    fall_ill(path.target, lambda row: row.fill_(math.nan), from_length=12)
    shown, error = await path.failure(session_id=how, **ill)
    assert error.reason == "NUMERICAL_FAILURE"
    assert shown.tokens == well.tokens[: len(shown.tokens)]
    held = await path.coordinator.left(how)
    assert held.state == generation_pb2.SESSION_STATE_INTERRUPTED
    assert list(held.token_ids) == [ILL, 2, 3, *shown.tokens]
    monkeypatch.setattr(path.target.servicer.model, "bad", None)
    if how == "resumed":
        rest = await path.answer(session_id=how, resume_from=len(shown.tokens))
        assert [*shown.tokens, *rest.tokens] == well.tokens
    else:
        more = request(4, COUPLED) | {"token_ids": [8]}
        rest = await path.answer(session_id=how, **more)
        fresh = await path.answer(**more | {"token_ids": [ILL, 2, 3, *shown.tokens, 8]})
        assert rest.tokens == fresh.tokens
    assert rest.last.finish_reason == LENGTH


async def test_a_pass_that_breaks_ends_its_answers_and_nothing_after(path, fall_ill, monkeypatch):
    def breaks(_):
        raise RuntimeError("broken")

    others = [request(gamma, COUPLED, first=10 + gamma) for gamma in (0, 1, 4)]
    before = [answer.tokens for answer in await path.answers(others)]
    fall_ill(path.target, breaks)
    shown, error = await path.failure(session_id="broken", **request(4, first=ILL))
    assert (shown.events, error.code) == ([], "INTERNAL")
    assert [answer.tokens for answer in await path.answers(others)] == before
    assert await path.health() == SERVING
    monkeypatch.setattr(path.target.servicer.model, "bad", None)
    assert len((await path.answer(session_id="broken", resume_from=0)).tokens) == 24


@pytest.mark.parametrize("value", [math.nan, math.inf])
async def test_bad_numbers_of_the_draft_cost_speed_alone(path, fall_ill, value):
    asked = request(4, COUPLED, first=ILL)
    plain = await path.answer(**asked)
    fall_ill(path.draft, lambda row: row.fill_(value))
    answer = await path.answer(**asked)
    assert answer.tokens == plain.tokens
    assert not any(answer.fallbacks)  # guesses take the place of what was not to be had
    assert await path.health() == SERVING


async def test_residuals_without_mass_are_counted_where_prometheus_looks(path, monkeypatch):
    """Only rounding brings them about, so the verdicts are made to say so."""
    before = path.coordinator.metric("residual_zero_total")

    def without_mass(*given):
        verdict = verify(*given)
        return replace(verdict, residual_zero=torch.ones_like(verdict.residual_zero))

    monkeypatch.setattr(verifying, "verify", without_mass)
    answered = await path.answer(
        token_ids=[1, 2, 3],
        sampling_params={"temperature": 1.0, "seed": 3, "max_new_tokens": 12, "ignore_eos": True},
        speculation={"gamma": 4},
    )
    assert path.coordinator.metric("residual_zero_total") == before + len(answered.rounds)
