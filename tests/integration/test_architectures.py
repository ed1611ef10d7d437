"""Greedy answers of every architecture are Hugging Face's, in float32, at any gamma and beside others."""

import asyncio

import pytest
import torch
import transformers

from specdec.v1 import common_pb2, generation_pb2
from tests.in_process import running_services
from tests.prompts import PROMPTS
from tests.reference import Reference
from tests.tiny_models import ARCHITECTURES, VOCABULARY, write_tiny_model

GAMMAS = (0, 1, 4, 8)
TOKENS = 24
TEXTS = PROMPTS[9:15]


def ids_of(text):
    return list(text.encode())


async def answer(stub, text, gamma):
    request = generation_pb2.GenerateRequest(
        token_ids=ids_of(text),
        sampling_params=common_pb2.SamplingParams(temperature=0.0, max_new_tokens=TOKENS),
        speculation=generation_pb2.SpeculationParams(gamma=gamma),
    )
    return [token async for event in stub.Generate(request) for token in event.token_ids]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
async def test_greedy_equals_hugging_face(tmp_path, redis_url, architecture):
    target = write_tiny_model(tmp_path / architecture, architecture, layers=3)
    model = transformers.AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)
    reference = Reference(model, len(VOCABULARY))
    expected = [reference.greedy_answer(ids_of(text), TOKENS) for text in TEXTS]
    assert len({tuple(each.tokens) for each in expected}) == len(TEXTS)
    async with running_services(redis_url, target, f"layers:2:{target}") as stub:
        for shift in range(len(GAMMAS)):
            gammas = [GAMMAS[(number + shift) % len(GAMMAS)] for number in range(len(TEXTS))]
            found = await asyncio.gather(*[answer(stub, *each) for each in zip(TEXTS, gammas, strict=True)])
            for each, tokens in zip(expected, found, strict=True):
                each.assert_same(tokens)
