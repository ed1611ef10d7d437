"""How good a draft is: the share of its tokens that the target would keep, computed rather than counted."""

from collections.abc import Iterator, Sequence

import torch

from specdec.model.language_model import LanguageModel, Segment
from specdec.sampling import distributions
from training.answers import PLAIN, Answer

ROWS = 64  # positions in one pass: what their logits need in memory, not the answers' length, is the bound


def acceptance(target: LanguageModel, draft: LanguageModel, answers: Sequence[Answer]) -> float:
    """Return α: the mean over all answers' positions of Σ min(p, q) at temperature 1, over the full vocabulary.

    It is the probability with which the target keeps a draft token on its own text.

    Args:
        target: what p comes from.
        draft: what q comes from; of the same vocabulary size, on any device.
        answers: at least one.

    Raises:
        ValueError: there is no answer.

    Source: Leviathan et al. 2023 (arXiv 2211.17192), theorem 3.5.
    """
    if not answers:
        raise ValueError("acceptance needs at least one answer")
    return torch.cat([overlaps(target, draft, answer) for answer in answers]).mean().item()


def overlaps(target: LanguageModel, draft: LanguageModel, answer: Answer) -> torch.Tensor:
    """Return Σ min(p, q) at every position of one answer.

    Returns:
        [answer tokens] float64 on the CPU, each between 0 and 1; not finite where a model's logits are not.
    """
    pairs = zip(_distributions(target, answer), _distributions(draft, answer), strict=True)
    return torch.cat([torch.minimum(p.cpu(), q.cpu()).double().sum(dim=-1) for p, q in pairs])


def _distributions(model: LanguageModel, answer: Answer) -> Iterator[torch.Tensor]:
    """Yield the distributions of the answer's tokens, [at most ROWS, vocabulary] float32 at a time."""
    cache = model.new_cache()
    first = answer.prompt_length - 1  # the first token whose logits speak of the answer
    if first:
        model.forward([Segment(cache, answer.token_ids[:first], 0)])
    for start in range(first, len(answer.token_ids) - 1, ROWS):
        fed = answer.token_ids[start : min(start + ROWS, len(answer.token_ids) - 1)]
        (logits,) = model.forward([Segment(cache, fed, len(fed))])
        yield distributions(logits, [PLAIN] * len(fed))
