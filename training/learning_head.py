"""A head of only the tokens that a draft knows, for as long as it trains."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from specdec.model.refusal import ModelRefused


@contextmanager
def learning_head(student: Any, token_ids: torch.Tensor) -> Iterator[None]:
    """Give a model a head of K rows; when the context ends, the rows go back into its own head.

    Args:
        student: a transformers model with a head of its own.
        token_ids: [K] the rows, in the order that the cut head's logits have.

    Raises:
        ModelRefused: the head shares its weights with the embeddings.
    """
    full: torch.nn.Linear = student.get_output_embeddings()
    if full.weight is student.get_input_embeddings().weight:
        raise ModelRefused("the draft's head is tied to its embeddings; give it one of its own before it is trained")
    rows = torch.nn.Linear(
        full.in_features, len(token_ids), full.bias is not None, full.weight.device, full.weight.dtype
    )
    pairs = list(zip(rows.parameters(), full.parameters(), strict=True))
    with torch.no_grad():
        for cut, whole in pairs:
            cut.copy_(whole[token_ids])
    student.set_output_embeddings(rows)
    try:
        yield
    finally:
        with torch.no_grad():
            for cut, whole in pairs:
                whole[token_ids] = cut
        student.set_output_embeddings(full)
