"""Soft labels and the student's logits: the same rows of both, whatever they are batched with."""

import pytest
import torch
import transformers

from specdec.model.loading import load_model
from tests.tiny_models import write_tiny_model
from training.answers import Answer
from training.soft_labels import plain_distributions, soft_labels, student_logits

ANSWERS = [Answer((5, 9, 7, 30, 31), 2), Answer(tuple(range(60, 90)), 29), Answer((200, 201, 202, 8, 9, 10, 11), 1)]
ROWS = [3, 1, 6]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp("model"))


def test_rows_are_the_answers_tokens_and_the_same_for_teacher_and_student(folder):
    """One model in both places: cut and padded in their two ways they say the same."""
    every = torch.arange(258)
    labels = soft_labels(load_model(folder, device="cpu", dtype="float64"), ANSWERS, every)
    student = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64)
    logits = student_logits(student, ANSWERS, student.device)[:, :258]
    assert labels.shape == (sum(ROWS), 258)
    torch.testing.assert_close(labels.sum(dim=-1), torch.ones(sum(ROWS)))
    torch.testing.assert_close(plain_distributions(logits), labels, atol=1e-6, rtol=1e-4)


def test_padding_changes_nothing(folder):
    student = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64)
    together = student_logits(student, ANSWERS, student.device)
    alone = [student_logits(student, [answer], student.device) for answer in ANSWERS]
    assert [len(rows) for rows in alone] == ROWS
    torch.testing.assert_close(together, torch.cat(alone), atol=1e-5, rtol=1e-5)


def test_labels_keep_what_the_teacher_gives_to_known_tokens(folder):
    teacher = load_model(folder, device="cpu", dtype="float64")
    known = torch.tensor([9, 250, 40])
    every, cut = soft_labels(teacher, ANSWERS, torch.arange(258)), soft_labels(teacher, ANSWERS, known)
    assert torch.equal(cut, every[:, known])
    assert (cut.sum(dim=-1) < 1).all()
    assert not cut.is_inference()  # or no gradient could be computed from them
