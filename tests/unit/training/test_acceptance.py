"""α against brute force: every token's min(p, q), summed in plain Python."""

import math

import pytest

from specdec.model.language_model import Segment
from specdec.model.loading import load_model
from training.acceptance import acceptance, overlaps
from training.answers import Answer

TARGET = "synthetic:vocabulary=16,seed=1"
DRAFT = "synthetic:vocabulary=16,seed=1,agreement=0.6"
ANSWERS = [Answer((3, 1, 4, 1, 5, 9, 2, 6), 3), Answer((2, 7, 1, 8), 1), Answer(tuple(range(16)) * 9, 5)]


def brute_force(target, draft, answers):
    shares = []
    for answer in answers:
        for place in range(answer.prompt_length, len(answer.token_ids)):
            p, q = (exact(model, answer.token_ids[:place]) for model in (target, draft))
            shares.append(sum(min(left, right) for left, right in zip(p, q, strict=True)))
    return sum(shares) / len(shares)


def exact(model, tokens):
    (logits,) = model.forward([Segment(model.new_cache(), tokens, 1)])
    weights = [math.exp(logit) for logit in logits[0].tolist()]
    return [weight / sum(weights) for weight in weights]


def test_alpha_is_the_sum_of_the_smaller_probabilities():
    target, draft = load_model(TARGET, "cpu"), load_model(DRAFT, "cpu")
    found = acceptance(target, draft, ANSWERS)
    assert found == pytest.approx(brute_force(target, draft, ANSWERS), abs=1e-6)
    assert 0.2 < found < 0.9


def test_a_model_keeps_all_of_itself():
    target = load_model(TARGET, "cpu")
    assert acceptance(target, target, ANSWERS) == pytest.approx(1.0, abs=1e-6)


def test_every_answer_token_counts_once():
    target, draft = load_model(TARGET, "cpu"), load_model(DRAFT, "cpu")
    assert [len(overlaps(target, draft, answer)) for answer in ANSWERS] == [5, 3, 139]


def test_nothing_to_measure_on_is_an_error():
    target = load_model(TARGET, "cpu")
    with pytest.raises(ValueError, match="at least one answer"):
        acceptance(target, target, [])


@pytest.mark.parametrize(("tokens", "prompt_length"), [((), 0), ((1, 2), 0), ((1, 2), 2)])
def test_an_answer_has_a_prompt_and_an_answer(tokens, prompt_length):
    with pytest.raises(ValueError, match="cannot have"):
        Answer(tokens, prompt_length)
