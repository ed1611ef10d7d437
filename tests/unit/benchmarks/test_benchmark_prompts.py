"""The benchmarks' prompts are what they say and fit small models."""

import pytest
import transformers

from benchmarks.prompts import PROMPTS
from specdec.model.checkpoint import find_checkpoint

CONTEXT = 400  # tokens of prompt and answer together
ANSWER = 128


@pytest.fixture(scope="module")
def tokenizer():
    return transformers.AutoTokenizer.from_pretrained(find_checkpoint("embedded:smollm2").folder)


def test_five_kinds_with_several_prompts_each():
    assert list(PROMPTS) == ["chat", "code", "summary", "edit", "story"]
    assert all(len(prompts) >= 4 for prompts in PROMPTS.values())
    every = [prompt for prompts in PROMPTS.values() for prompt in prompts]
    assert len(set(every)) == len(every)
    assert all(prompt == prompt.strip() and prompt for prompt in every)


@pytest.mark.parametrize("kind", list(PROMPTS))
def test_prompts_fit_small_models(kind, tokenizer):
    for prompt in PROMPTS[kind]:
        message = [{"role": "user", "content": prompt}]
        length = len(tokenizer.apply_chat_template(message, add_generation_prompt=True)["input_ids"])
        assert length + ANSWER <= CONTEXT


@pytest.mark.parametrize("kind", ["summary", "edit"])
def test_what_is_to_be_worked_on_stands_in_the_prompt(kind, tokenizer):
    for prompt in PROMPTS[kind]:
        instruction, _, material = prompt.partition("\n\n")
        assert len(tokenizer(instruction)["input_ids"]) < len(tokenizer(material)["input_ids"])
        assert len(tokenizer(material)["input_ids"]) >= 40


def test_prose_has_no_line_breaks_within_its_paragraphs():
    assert not [prompt for prompt in PROMPTS["summary"] if "\n" in prompt.replace("\n\n", "")]


def test_code_keeps_its_lines():
    assert "\n    x = 0.0\n    for value in values:\n        x = x + value\n" in "".join(PROMPTS["edit"])
