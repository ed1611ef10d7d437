"""Which tokens a draft's head keeps: those that the target's answers are made of."""

from collections import Counter
from collections.abc import Iterable, Sequence

import torch

from training.answers import Answer


def kept_tokens(answers: Sequence[Answer], always: Iterable[int], count: int, vocabulary_size: int) -> torch.Tensor:
    """Choose the tokens of a draft.

    First those that must be there, then by how often the answers have them, then the prompts; then the lowest ids, for
    tokenizers number their merges from the most frequent one on.

    Args:
        answers: to count in.
        always: token ids that end an answer or open a turn.
        count: K; a draft of more than the whole vocabulary keeps all of it.
        vocabulary_size: the real one.

    Returns:
        [K] int64, in rising order.
    """
    said = Counter(token for answer in answers for token in answer.token_ids[answer.prompt_length :])
    asked = Counter(token for answer in answers for token in answer.token_ids[: answer.prompt_length])
    wanted = [*always, *(token for counts in (said, asked) for token, _ in counts.most_common())]
    ranked = [token for token in dict.fromkeys([*wanted, *range(vocabulary_size)]) if token < vocabulary_size]
    return torch.tensor(sorted(ranked[:count]))


def coverage(answers: Sequence[Answer], token_ids: torch.Tensor) -> float:
    """Return which share of the answers' tokens is among these, between 0 and 1."""
    known = set(token_ids.tolist())
    said = [token for answer in answers for token in answer.token_ids[answer.prompt_length :]]
    return sum(token in known for token in said) / len(said)
