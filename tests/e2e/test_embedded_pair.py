"""The embedded pair says what Hugging Face says of its target, SmolLM2-135M-Instruct, alone."""

import os

import pytest
import torch
import transformers

from deploy.laptop import DEFAULT_TARGET
from deploy.system import System
from specdec.model.checkpoint import find_checkpoint
from tests.e2e.calls import Caller
from tests.prompts import PROMPTS
from tests.reference import Reference

TOGETHER = 6
# Cheaper than the default draft, and often wrong: what is proposed must not matter.
CHEAP_DRAFT = f"layers:20:{DEFAULT_TARGET}"


@pytest.fixture(scope="module")
def tokenizer():
    return transformers.AutoTokenizer.from_pretrained(find_checkpoint(DEFAULT_TARGET).folder)


@pytest.fixture(scope="module")
def reference(tokenizer):
    torch.set_num_threads(os.cpu_count() or 1)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        find_checkpoint(DEFAULT_TARGET).folder, dtype=torch.float32
    )
    yield Reference(model, len(tokenizer))
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def caller(tmp_path_factory):
    folder = tmp_path_factory.mktemp("embedded")
    with System(folder, target=DEFAULT_TARGET, draft=CHEAP_DRAFT, environment={"OMP_NUM_THREADS": "1"}) as system:
        caller = Caller(system.address("coordinator"))
        yield caller
        caller.channel.close()


def check(caller, reference, tokenizer, prompts, new_tokens, gamma):
    expected = {text: reference.greedy(tokenizer(text).input_ids, new_tokens) for text in prompts}
    for start in range(0, len(prompts), TOGETHER):
        together = prompts[start : start + TOGETHER]
        params = {"temperature": 0.0, "max_new_tokens": new_tokens}
        found = caller.tokens_of_all(
            [{"prompt": text, "sampling_params": params, "speculation": {"gamma": gamma}} for text in together]
        )
        for text, answer in zip(together, found, strict=True):
            reference.assert_same(tokenizer(text).input_ids, expected[text], answer)


@pytest.mark.parametrize("gamma", [0, 4])
def test_greedy_equals_hugging_face(caller, reference, tokenizer, gamma):
    check(caller, reference, tokenizer, PROMPTS[:4], 16, gamma)


@pytest.mark.long
@pytest.mark.parametrize("gamma", [0, 1, 4, 8])
def test_greedy_equals_hugging_face_for_all_prompts(caller, reference, tokenizer, gamma):
    check(caller, reference, tokenizer, PROMPTS, 64, gamma)


def test_a_chat_answer_is_sensible_and_ends_by_itself(caller):
    messages = [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]
    events = caller.events(messages=messages, sampling_params={"max_new_tokens": 40}, speculation={"gamma": 4})
    text = "".join(event.text for event in events)
    assert "Paris" in text
    assert "<|im_end|>" not in text
    assert events[-1].matched_stop == "<|im_end|>"
