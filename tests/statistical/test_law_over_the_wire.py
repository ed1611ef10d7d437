"""Answers of the three services have the target's law; broken parts are seen.

Seeds are fixed, so a run repeats exactly; the threshold was fixed beforehand. The synthetic model's law is exact.
"""

import asyncio
from collections import Counter

import pytest
import torch

from draft_service import drafting
from specdec import verification
from specdec.model.loading import load_model
from specdec.parameters import SamplingParams
from specdec.proposal import SparseDistribution
from specdec.sampling import RowContext, distributions
from specdec.v1 import common_pb2, generation_pb2
from target_service import verifying
from tests.in_process import running_services
from tests.statistical.chi_square import FAILS_ABOVE, z_score
from tests.statistical.enumeration import target_law

VOCABULARY = 8
TARGET, DRAFT = "synthetic:vocabulary=8,seed=1,order=2", "synthetic:vocabulary=8,seed=2,order=2"
PROMPT, LENGTH, ANSWERS, AT_ONCE = (3,), 3, 800, 32
WAYS = {
    "token": common_pb2.VERIFICATION_TOKEN,
    "block": common_pb2.VERIFICATION_BLOCK,
    "coupled": common_pb2.VERIFICATION_COUPLED,
}
PARAMS = {
    "plain": {"temperature": 1.0},
    "cut": {"temperature": 1.3, "top_k": 3, "top_p": 0.9},
    "penalised": {"temperature": 0.7, "repetition_penalty": 1.5, "presence_penalty": 0.5, "logit_bias": {2: 1.0}},
}


def law_of(name):
    """Return the law of the answer: the target's own, processed."""
    model = load_model(TARGET)
    params = SamplingParams(**PARAMS[name])

    def rows(answer):
        context = [*PROMPT, *answer]
        logits = model.law(context).log().clamp(min=-1e30)
        return distributions(logits[None], [RowContext(params, context, len(PROMPT), (), ())])[0]

    return target_law(rows, LENGTH)


async def counted_answers(redis_url, way, name, gamma, draft=DRAFT):
    """Return how often each answer came, and draft tokens and fallback rounds in all."""
    observed, usage = Counter(), Counter()
    async with running_services(redis_url, TARGET, draft) as stub:
        slots = asyncio.Semaphore(AT_ONCE)

        async def answer(seed):
            params = common_pb2.SamplingParams(**PARAMS[name], seed=seed, max_new_tokens=LENGTH, ignore_eos=True)
            request = generation_pb2.GenerateRequest(
                token_ids=PROMPT,
                sampling_params=params,
                speculation=generation_pb2.SpeculationParams(gamma=gamma, verification=WAYS[way]),
            )
            async with slots:
                events = [event async for event in stub.Generate(request, timeout=60)]
            observed[tuple(token for event in events for token in event.token_ids)] += 1
            usage["draft_tokens"] += events[-1].usage.spec_draft_tokens
            usage["accepted"] += events[-1].usage.spec_accepted_tokens
            usage["fallbacks"] += sum(event.round.fallback != 0 for event in events)

        await asyncio.gather(*(answer(seed) for seed in range(ANSWERS)))
    return observed, usage


@pytest.mark.parametrize(
    ("way", "name", "gamma"),
    [
        ("token", "plain", 2),
        ("token", "cut", 1),
        ("block", "plain", 2),
        ("block", "penalised", 2),
        ("coupled", "plain", 2),
        ("coupled", "cut", 2),
        ("token", "penalised", 0),
    ],
)
async def test_the_law_is_the_targets(redis_url, way, name, gamma):
    observed, usage = await counted_answers(redis_url, way, name, gamma)
    assert z_score(observed, law_of(name)) < FAILS_ABOVE
    assert usage["fallbacks"] == 0
    assert (usage["accepted"] > 0) == (gamma > 0)


def correction_from_p(p, draft, weights, accept_index):
    return p[accept_index], torch.tensor(False)


def draw_the_likeliest(weights, uniforms):
    return weights.argmax(dim=-1)


def name_other_tokens(token_ids, probabilities):
    return SparseDistribution(tuple(token + VOCABULARY for token in token_ids), probabilities)


@pytest.mark.parametrize("way", ["token", "block"])
async def test_control_corrections_that_ignore_the_draft_are_seen(redis_url, monkeypatch, way):
    monkeypatch.setattr(verification, "residual_distribution", correction_from_p)
    observed, _ = await counted_answers(redis_url, way, "plain", 2)
    assert z_score(observed, law_of("plain")) > FAILS_ABOVE


async def test_control_a_draft_that_draws_otherwise_than_it_says_would_be_seen(redis_url, monkeypatch):
    monkeypatch.setattr(drafting, "inverse_cdf", draw_the_likeliest)
    monkeypatch.setattr(verifying, "check_draws", lambda *_: None)
    observed, _ = await counted_answers(redis_url, "token", "plain", 2)
    assert z_score(observed, law_of("plain")) > FAILS_ABOVE


async def test_a_draft_that_says_other_than_it_drew_from_is_refused_and_harms_nothing(redis_url, monkeypatch):
    monkeypatch.setattr(drafting, "SparseDistribution", name_other_tokens)
    observed, usage = await counted_answers(redis_url, "token", "plain", 2)
    assert z_score(observed, law_of("plain")) < FAILS_ABOVE
    assert usage["fallbacks"] > 0


async def test_control_the_drafts_law_is_another(redis_url):
    observed, _ = await counted_answers(redis_url, "token", "plain", 2)
    other = load_model(DRAFT)
    wrong = target_law(lambda answer: other.law([*PROMPT, *answer]).float(), LENGTH)
    assert z_score(observed, wrong) > FAILS_ABOVE
