"""A draft that is the target itself, in float32 as a CPU serves it: every draft token stands, at any temperature."""

from dataclasses import replace

import pytest

from draft_service.drafting import Draft
from specdec.parameters import SamplingParams
from specdec.v1 import common_pb2, generation_pb2
from tests.in_process import running_services
from tests.statistical.answers import WAYS, answers_of
from tests.tiny_models import PADDED, write_tiny_model

TEMPERATURES = (0.0, 0.1, 0.7, 1.0, 1.3, 10.0)
# What the draft leaves out, or counts otherwise than the target, costs acceptance.
OPTIONS = (
    {"repetition_penalty": 1.8},
    {"presence_penalty": 1.5, "frequency_penalty": 1.0},
    {"logit_bias": {5: 6.0, 9: 6.0}},
    {"min_new_tokens": 31, "stop_token_ids": list(range(60, 124))},
    {"top_k": 4},
    {"top_p": 0.5},
    {"min_p": 0.4},
)
SEEDS, ANSWER = range(3), 31  # of 5 with every full round, and one for the target at the end
PROMPTS = ((5, 6, 7), tuple(range(40, 90)))  # of unlike lengths: the batches are ragged


def requests(way):
    for params in [{"temperature": each} for each in TEMPERATURES] + [{"temperature": 1.0} | each for each in OPTIONS]:
        for seed in SEEDS:
            yield generation_pb2.GenerateRequest(
                token_ids=PROMPTS[seed % 2],
                sampling_params=common_pb2.SamplingParams(seed=seed, max_new_tokens=ANSWER, ignore_eos=True, **params),
                speculation=generation_pb2.SpeculationParams(gamma=4, verification=WAYS[way]),
            )


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


async def usage_of(redis_url, model, way, support_size):
    async with running_services(redis_url, model, model, support_size=support_size) as stub:
        return (await answers_of(stub, requests(way))).usage


@pytest.mark.parametrize("way", WAYS)
async def test_every_draft_token_stands(redis_url, model, way):
    usage = await usage_of(redis_url, model, way, support_size=PADDED)
    assert usage["fallbacks"] == 0
    assert usage["draft_tokens"] >= len(TEMPERATURES) * len(SEEDS) * 24
    assert usage["accepted"] == usage["draft_tokens"]


@pytest.mark.parametrize(
    "otherwise",
    [
        lambda row: replace(row, prompt_length=0),
        lambda row: replace(row, params=SamplingParams(temperature=row.params.temperature, seed=row.params.seed)),
        lambda row: replace(row, drafted=()),
    ],
    ids=["the prompt counts as answer", "options are ignored", "draft tokens do not count"],
)
async def test_control_a_draft_that_applies_other_parameters_loses_acceptance(redis_url, model, monkeypatch, otherwise):
    own = Draft.row.fget
    monkeypatch.setattr(Draft, "row", property(lambda draft: otherwise(own(draft))))
    usage = await usage_of(redis_url, model, "coupled", support_size=PADDED)
    assert usage["accepted"] < usage["draft_tokens"]


async def test_control_a_cut_support_costs_acceptance(redis_url, model):
    usage = await usage_of(redis_url, model, "token", support_size=2)
    assert 0 < usage["accepted"] < usage["draft_tokens"]
