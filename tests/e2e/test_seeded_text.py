"""COUPLED: a seeded answer depends on target, prompt, parameters and seed alone; in float64 to the token."""

import random
from functools import cache

import pytest

from deploy.system import System
from specdec.parameters import SamplingParams
from specdec.v1 import common_pb2
from tests.e2e.calls import Caller
from tests.e2e.restarts import answers_across_a_restart
from tests.tiny_models import EOS, write_tiny_model

GAMMAS = (0, 1, 4, 8)
TOKENS = 32
TOGETHER = 25
WHOLE = range(200)


def how_many(part):
    """Run a test over a part of the requests, and over all of them in the long form."""
    return pytest.mark.parametrize(
        "numbers", [pytest.param(part, id="part"), pytest.param(WHOLE, id="whole", marks=pytest.mark.long)]
    )


def prompt_of(number):
    chance = random.Random(f"prompt {number}")
    return [chance.randrange(256) for _ in range(chance.randint(1, 60))]


def params_of(number):
    """Return parameters that are the same in float32, as they are carried."""
    chance = random.Random(f"params {number}")
    return {
        "seed": chance.getrandbits(64),
        "temperature": chance.choice((0.0, 0.625, 1.0, 1.0, 1.375, 2.0)),
        "top_k": chance.choice((0, 0, 3, 40)),
        "top_p": chance.choice((1.0, 1.0, 0.9375, 0.75)),
        "min_p": chance.choice((0.0, 0.0, 0.03125)),
        "repetition_penalty": chance.choice((1.0, 1.0, 1.25, 0.875)),
        "presence_penalty": chance.choice((0.0, 0.0, 0.75, -0.25)),
        "frequency_penalty": chance.choice((0.0, 0.0, 0.5, -0.125)),
        "logit_bias": {chance.randrange(256): chance.randint(-8, 8) / 2 for _ in range(chance.choice((0, 0, 1, 20)))},
        "min_new_tokens": chance.choice((0, 0, 24)),
        "stop_token_ids": chance.sample(range(256), chance.choice((0, 0, 4))),
        "ignore_eos": chance.random() < 0.5,
        "max_new_tokens": TOKENS,
    }


def request(number, gamma):
    return {
        "token_ids": prompt_of(number),
        "sampling_params": params_of(number),
        "speculation": {"gamma": gamma, "verification": common_pb2.VERIFICATION_COUPLED},
    }


@pytest.fixture(scope="module")
def other_system(tmp_path_factory, tiny_target):
    """The same target beside a draft of another architecture, which has nothing to do with it."""
    draft = write_tiny_model(tmp_path_factory.mktemp("models") / "draft", "qwen2", seed=1, layers=1, context=1024)
    environment = {"TARGET_DTYPE": "float64", "DRAFT_DTYPE": "float64"}
    folder = tmp_path_factory.mktemp("other")
    with System(folder, target=tiny_target, draft=draft, environment=environment) as system:
        yield system


@pytest.fixture
def callers(system, other_system):
    callers = [Caller(each.address("coordinator")) for each in (system, other_system)]
    yield callers
    for caller in callers:
        caller.channel.close()


@pytest.fixture(scope="module")
def expected(tiny_reference):
    @cache
    def answer(number):
        params = params_of(number)
        params["stop_token_ids"] = tuple(params["stop_token_ids"])
        return tiny_reference.coupled_answer(prompt_of(number), SamplingParams(**params), (EOS,)).tokens

    return answer


@how_many(range(200, 202))
def test_alone_with_any_draft_and_gamma(callers, expected, numbers):
    for number in numbers:
        for place, gamma in enumerate(GAMMAS):
            caller = callers[(number + place) % 2]
            assert caller.tokens(**request(number, gamma)) == expected(number), (number, gamma)


@how_many(range(300, 306))
def test_in_a_batch_with_any_draft_and_gamma(callers, expected, numbers):
    for start in range(0, len(numbers), TOGETHER):
        together = numbers[start : start + TOGETHER]
        for shift in range(len(GAMMAS)):
            requests = [request(number, GAMMAS[(number + shift) % len(GAMMAS)]) for number in together]
            for caller in callers:
                assert caller.tokens_of_all(requests) == [expected(number) for number in together]


@pytest.mark.parametrize("name", ["draft", "target", "coordinator", "redis"])
@how_many(range(400, 410))
def test_across_a_restart_in_mid_answer(system, expected, name, numbers):
    for start in range(0, len(numbers), 2 * TOGETHER):
        together = numbers[start : start + 2 * TOGETHER]
        requests = [request(number, GAMMAS[number % len(GAMMAS)]) for number in together]
        found = answers_across_a_restart(system, name, requests)
        assert found == [expected(number) for number in together]


def test_the_seed_decides(tiny_reference):
    number = 500
    params = params_of(number) | {"stop_token_ids": (), "temperature": 1.0, "top_k": 0}
    answers = {
        tuple(tiny_reference.coupled_answer(prompt_of(number), SamplingParams(**params | {"seed": seed}), ()).tokens)
        for seed in range(4)
    }
    assert len(answers) == 4
