"""A draft that is the target itself, in float32 as a CPU serves it: every draft token stands, at any temperature."""

import pytest

from specdec.v1 import common_pb2, generation_pb2
from tests.in_process import running_services
from tests.statistical.answers import WAYS, answers_of
from tests.tiny_models import PADDED, write_tiny_model

TEMPERATURES = (0.0, 0.1, 0.7, 1.0, 1.3, 10.0)
SEEDS, ANSWER = range(3), 31  # of 5 with every full round, and one for the target at the end
PROMPTS = ((5, 6, 7), tuple(range(40, 90)))  # of unlike lengths: the batches are ragged


def requests(way):
    for temperature in TEMPERATURES:
        for seed in SEEDS:
            yield generation_pb2.GenerateRequest(
                token_ids=PROMPTS[seed % 2],
                sampling_params=common_pb2.SamplingParams(
                    temperature=temperature, seed=seed, max_new_tokens=ANSWER, ignore_eos=True
                ),
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


async def test_control_a_cut_support_costs_acceptance(redis_url, model):
    usage = await usage_of(redis_url, model, "token", support_size=2)
    assert 0 < usage["accepted"] < usage["draft_tokens"]
