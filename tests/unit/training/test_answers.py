"""Sampled answers: the model's law, one answer a prompt whatever the batch, and nothing lost when a run breaks."""

from collections import Counter

import pytest
import torch

import training.answers
from specdec.model.language_model import Segment
from specdec.model.loading import load_model
from specdec.model.refusal import ModelRefused
from tests.statistical.chi_square import FAILS_ABOVE, z_score
from training.answers import keep_answers, read_answers, sampled_answers

PROMPTS = {index: [1 + index % 5] * (1 + index % 7) for index in range(20)}


@pytest.fixture(scope="module")
def model():
    return load_model("synthetic:vocabulary=16,seed=1", "cpu")


def test_an_answer_goes_on_from_its_prompt_up_to_the_limit(model):
    answers = dict(sampled_answers(model, PROMPTS, 9, 0))
    assert answers.keys() == PROMPTS.keys()
    ends = model.description.eos_token_ids
    for index, answer in answers.items():
        assert list(answer.token_ids[: answer.prompt_length]) == PROMPTS[index]
        said = answer.token_ids[answer.prompt_length :]
        assert not set(said[:-1]) & set(ends)
        assert len(said) == 9 or said[-1] in ends


def test_an_answer_does_not_depend_on_the_batch_it_is_sampled_in(model, monkeypatch):
    together = dict(sampled_answers(model, PROMPTS, 9, 0))
    monkeypatch.setattr(training.answers, "WIDTH", 3)
    assert dict(sampled_answers(model, PROMPTS, 9, 0)) == together
    assert dict(sampled_answers(model, {7: PROMPTS[7]}, 9, 0)) == {7: together[7]}
    assert dict(sampled_answers(model, PROMPTS, 9, 1)) != together


def test_answers_have_the_models_law(model):
    count, prompt = 3000, [3, 1, 4]
    found = Counter(
        answer.token_ids[-1] for _, answer in sampled_answers(model, dict.fromkeys(range(count), prompt), 1, 5)
    )
    (logits,) = model.forward([Segment(model.new_cache(), prompt, 1)])
    law = dict(enumerate(torch.softmax(logits[0].double(), -1).tolist()))
    assert z_score(found, law) < FAILS_ABOVE
    warmer = dict(enumerate(torch.softmax(logits[0].double() / 1.3, -1).tolist()))
    assert z_score(found, warmer) > FAILS_ABOVE


def test_long_prompts_lose_their_beginning(monkeypatch):
    model = load_model("synthetic:vocabulary=16,seed=1,context=32", "cpu")
    long = [place % 16 for place in range(100)]
    ((_, answer),) = sampled_answers(model, {0: long}, 8, 0)
    assert list(answer.token_ids[: answer.prompt_length]) == long[-24:]


def test_a_broken_run_goes_on_and_ends_with_the_same_answers(model, tmp_path):
    prompts = list(PROMPTS.values())
    assert sorted(keep_answers(model, prompts, 9, 0, tmp_path / "whole")) == list(PROMPTS)
    path = tmp_path / "broken"
    running = keep_answers(model, prompts, 9, 0, path)
    kept = [next(running) for _ in range(4)]
    running.close()
    path.write_text(path.read_text()[:-5])  # the last line was being written
    again = list(keep_answers(model, prompts, 9, 0, path))
    assert again[:3] == sorted(kept[:3])
    assert sorted(again) == list(PROMPTS)
    assert read_answers(path) == read_answers(tmp_path / "whole")


def test_a_model_that_says_nothing_finite_is_refused(model, monkeypatch):
    monkeypatch.setattr(model, "forward", lambda segments: [torch.full((1, 16), torch.nan) for _ in segments])
    with pytest.raises(ModelRefused, match="not finite"):
        list(sampled_answers(model, {0: [1]}, 9, 0))
