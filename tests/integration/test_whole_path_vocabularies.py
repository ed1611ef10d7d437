"""Vocabularies over the whole path: padded heads of any size, and drafts of another tokenizer, told by content."""

import pytest
import pytest_asyncio
import torch
import transformers

from specdec.v1 import generation_pb2
from tests.engines import state_of
from tests.in_process import serving_draft, serving_target
from tests.integration.coordinator_process import coordinating
from tests.integration.whole_path import COUPLED, NOT_SERVING, SERVING, TOKEN, WholePath, whole_path
from tests.tiny_models import BYTES, VOCABULARY, write_tiny_model

TARGET_HEAD, DRAFT_HEAD = 320, 384  # columns; those beyond the vocabulary are padding
PROMPT = list(b"once upon a time")
WAYS = {
    "greedy": {"temperature": 0.0},
    "sampled": {"temperature": 1.3, "seed": 3},
    "cut": {"temperature": 1.0, "seed": 3, "top_k": 200, "top_p": 0.99},
}

pytestmark = pytest.mark.asyncio(loop_scope="module")


def write_model(folder, *, head, seed, tokens=BYTES):
    """Write a tiny model whose padded columns have by far the largest logits."""
    write_tiny_model(folder, seed=seed, head=head, tokens=tokens)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64)
    with torch.no_grad():
        model.lm_head.weight[len(VOCABULARY) :] *= 50
    model.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return {
        "target": write_model(folder / "target", head=TARGET_HEAD, seed=1),
        "draft": write_model(folder / "draft", head=DRAFT_HEAD, seed=1),
        "other": write_model(folder / "other", head=TARGET_HEAD, seed=1, tokens=BYTES[1:] + BYTES[:1]),
    }


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def path(redis_server, models):
    async with (
        serving_target(models["target"], dtype="float64") as target,
        serving_draft(models["draft"], dtype="float64") as draft,
        whole_path(redis_server.url, target, draft) as path,
    ):
        yield path


def request(gamma, verification, **params):
    return {
        "token_ids": PROMPT,
        "sampling_params": {"max_new_tokens": 24, "ignore_eos": True, "logprobs": 20} | params,
        "speculation": {"gamma": gamma, "verification": verification},
    }


@pytest.mark.parametrize("verification", [TOKEN, COUPLED])
@pytest.mark.parametrize("way", WAYS)
async def test_padding_never_comes_out_whatever_the_sizes_of_the_heads(path, models, way, verification):
    network = transformers.AutoModelForCausalLM.from_pretrained(models["target"], dtype=torch.float64)
    for gamma in (0, 4):
        answer = await path.answer(**request(gamma, verification, **WAYS[way]))
        assert max(answer.tokens) < len(VOCABULARY)
        with torch.inference_mode():
            logits = network(torch.tensor([[*PROMPT, *answer.tokens]])).logits[0, len(PROMPT) - 1 : -1]
        assert (logits.argmax(dim=-1) >= len(VOCABULARY)).double().mean() > 0.9  # else this shows nothing
        logprobs = logits[:, : len(VOCABULARY)].log_softmax(dim=-1)
        for place, each in enumerate(answer.logprobs):
            assert each.logprob == pytest.approx(logprobs[place, each.token_id].item(), abs=1e-5)
            assert [top.token_id for top in each.top] == torch.topk(logprobs[place], 20).indices.tolist()
        if way == "greedy":
            assert answer.tokens == logprobs.argmax(dim=-1).tolist()
        if gamma:
            assert not any(answer.fallbacks)
            assert answer.usage.spec_draft_tokens > 0


async def test_padding_cannot_be_asked_for(path):
    for params in ({"logit_bias": {len(VOCABULARY): 1.0}}, {"stop_token_ids": [TARGET_HEAD - 1]}):
        _, error = await path.failure(**request(4, TOKEN, **params))
        assert error.reason == "INVALID_PARAMETER"
        assert error.field in {f"sampling_params.{name}" for name in params}
    _, error = await path.failure(**request(4, TOKEN) | {"token_ids": [len(VOCABULARY)]})
    assert (error.reason, error.field) == ("INVALID_PARAMETER", "token_ids")


async def test_a_draft_of_another_tokenizer_of_the_same_size_is_refused_by_content(redis_server, path, models):
    async with (
        serving_draft(models["other"], dtype="float64") as other,
        coordinating(redis_server.url, [path.target.address], [other.address]) as running,
    ):
        drafts = running.fleet.drafts
        await drafts.wait_for(lambda: any(replica.refusal for replica in drafts.answering()), 30)
        wrong = WholePath(running, path.target, other)
        assert drafts.answering()[0].model.vocabulary_size == len(VOCABULARY)
        assert await wrong.health() == NOT_SERVING
        _, error = await wrong.failure(**request(4, TOKEN))
        assert (error.code, error.reason) == ("FAILED_PRECONDITION", "FINGERPRINT_MISMATCH")
        assert "vocabulary" in error.message


async def test_of_a_good_and_a_bad_draft_the_good_one_is_used(redis_server, path, models):
    async with (
        serving_draft(models["other"], dtype="float64") as other,
        coordinating(redis_server.url, [path.target.address], [other.address, path.draft.address]) as running,
    ):
        drafts = running.fleet.drafts
        await drafts.wait_for(lambda: len(drafts.answering()) == 2 and drafts.usable(), 30)
        mixed = WholePath(running, path.target, path.draft)
        await running.health(SERVING)
        before = await state_of(other.servicer.engine)
        for _ in range(3):
            answer = await mixed.answer(**request(4, COUPLED, **WAYS["sampled"]))
            plain = await path.answer(**request(0, COUPLED, **WAYS["sampled"]))
            assert answer.tokens == plain.tokens
            assert not any(answer.fallbacks)
            assert generation_pb2.TOKEN_SOURCE_ACCEPTED in answer.sources
        assert (await state_of(other.servicer.engine)).passes == before.passes
