"""What a student learns from: the teacher's distributions over the tokens that the student knows.

Teacher and student are asked for the same rows, those that the answers' tokens were drawn from, so that loss and
acceptance are sums over pairs of rows.
"""

from collections.abc import Sequence
from typing import Any

import torch

from specdec.model.language_model import LanguageModel, Segment
from specdec.sampling import distributions
from training.answers import PLAIN, Answer

ROWS = 256  # at a time: a distribution over the whole vocabulary is large, and several copies of it are made


def plain_distributions(logits: torch.Tensor) -> torch.Tensor:
    """Return the distributions at temperature 1, [n, columns] float32, of logits [n, columns]."""
    return distributions(logits, [PLAIN] * len(logits))


def soft_labels(teacher: LanguageModel, answers: Sequence[Answer], token_ids: torch.Tensor) -> torch.Tensor:
    """Return the teacher's probabilities of the student's tokens at every position of the answers.

    Args:
        teacher: the target.
        answers: at least one.
        token_ids: [K] what the student knows, on the teacher's device.

    Returns:
        [answers' tokens, K] float32, answer after answer. Rows sum to 1 less what the teacher gives to other tokens.
    """
    segments = [
        Segment(teacher.new_cache(), answer.token_ids[:-1], len(answer.token_ids) - answer.prompt_length)
        for answer in answers
    ]
    rows = torch.cat(teacher.forward(segments)).split(ROWS)
    return torch.cat([plain_distributions(logits)[:, token_ids] for logits in rows])


def student_logits(student: torch.nn.Module, answers: Sequence[Answer], device: torch.device) -> torch.Tensor:
    """Return the student's logits at the same positions, from one pass over a padded batch.

    Args:
        student: a transformers model, perhaps wrapped, with a head of K rows.
        answers: at least one.
        device: the student's.

    Returns:
        [answers' tokens, K], answer after answer, float32 or float64.
    """
    longest = max(len(answer.token_ids) for answer in answers) - 1
    token_ids = torch.zeros(len(answers), longest, dtype=torch.long)
    mask = torch.zeros_like(token_ids)
    for row, answer in enumerate(answers):
        fed = len(answer.token_ids) - 1  # the last token is drawn and never fed
        token_ids[row, :fed] = torch.tensor(answer.token_ids[:-1])
        mask[row, :fed] = 1
    first = min(answer.prompt_length for answer in answers) - 1  # whose logits speak of an answer
    output: Any = student(
        input_ids=token_ids.to(device),
        attention_mask=mask.to(device),
        use_cache=False,
        logits_to_keep=longest - first,
    )
    logits = torch.cat(
        [
            output.logits[row, answer.prompt_length - 1 - first : len(answer.token_ids) - 1 - first]
            for row, answer in enumerate(answers)
        ]
    )
    return logits.to(torch.promote_types(logits.dtype, torch.float32))
