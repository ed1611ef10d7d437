"""Quantised draft and target served: the answers are those of the quantised target alone, as Hugging Face runs it."""

import asyncio

import pytest
import torch
import transformers

from specdec.model.quantization import quantize
from specdec.v1 import common_pb2, generation_pb2
from tests.in_process import running_services
from tests.prompts import PROMPTS
from tests.reference import Reference
from tests.tiny_models import VOCABULARY, write_tiny_model

GAMMAS = (0, 1, 4)
TOKENS = 24
TEXTS = PROMPTS[9:12]


async def answer(stub, text, gamma):
    request = generation_pb2.GenerateRequest(
        token_ids=list(text.encode()),
        sampling_params=common_pb2.SamplingParams(temperature=0.0, max_new_tokens=TOKENS),
        speculation=generation_pb2.SpeculationParams(gamma=gamma),
    )
    return [token async for event in stub.Generate(request) for token in event.token_ids]


@pytest.mark.parametrize("kind", ["float16", "int8"])
async def test_greedy_equals_the_quantised_network_of_hugging_face(tmp_path, redis_url, kind, monkeypatch):
    folder = write_tiny_model(tmp_path / "target", "qwen2", layers=3)
    plain = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    unquantised = Reference(plain, len(VOCABULARY)).greedy_answer(list(TEXTS[0].encode()), TOKENS)
    quantize("reference", plain, kind)
    reference = Reference(plain, len(VOCABULARY))
    expected = [reference.greedy_answer(list(text.encode()), TOKENS) for text in TEXTS]
    assert unquantised.gaps != expected[0].gaps
    monkeypatch.setenv("TARGET_QUANTIZATION", kind)
    monkeypatch.setenv("DRAFT_QUANTIZATION", kind)
    async with running_services(redis_url, folder, f"layers:2:{folder}") as stub:
        for shift in range(len(GAMMAS)):
            gammas = [GAMMAS[(number + shift) % len(GAMMAS)] for number in range(len(TEXTS))]
            found = await asyncio.gather(*[answer(stub, *each) for each in zip(TEXTS, gammas, strict=True)])
            for each, tokens in zip(expected, found, strict=True):
                each.assert_same(tokens)
