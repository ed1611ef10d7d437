"""Which tokens a draft keeps."""

import pytest
import torch

from training.answers import Answer
from training.draft_tokens import coverage, kept_tokens

ANSWERS = [Answer((9, 9, 9, 5, 6, 6), 3), Answer((8, 7, 6, 5, 4), 2)]


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (1, [15]),
        (2, [6, 15]),
        (3, [5, 6, 15]),
        (4, [4, 5, 6, 15]),
        (5, [4, 5, 6, 9, 15]),
        (7, [4, 5, 6, 7, 8, 9, 15]),
        (9, [0, 1, 4, 5, 6, 7, 8, 9, 15]),
        (99, list(range(16))),
    ],
)
def test_ends_come_first_then_answers_then_prompts_then_low_ids(count, expected):
    found = kept_tokens(ANSWERS, [15], count, 16)
    assert (found.dtype, found.tolist()) == (torch.int64, expected)


def test_ids_beyond_the_real_vocabulary_are_never_kept():
    assert kept_tokens(ANSWERS, [15, 300], 99, 8).tolist() == list(range(8))


def test_coverage_counts_answers_alone():
    assert coverage(ANSWERS, torch.tensor([6])) == pytest.approx(3 / 6)
    assert coverage(ANSWERS, torch.tensor([8, 9])) == 0
