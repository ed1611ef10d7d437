"""Heads cut to the tokens that matter: the map beside a draft's weights, and the head that serves with it.

``draft_vocabulary.safetensors`` holds one tensor, ``d2t``: [K] int64, where the target's id of draft id i is
i + d2t[i], as the field's formats for drafts have it; config.json says K as ``draft_vocab_size``. The checkpoint's own
head is whole, so that transformers loads the folder as it is; here only the K rows are kept.
"""

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from specdec.model.refusal import ModelRefused

DRAFT_VOCABULARY = "draft_vocabulary.safetensors"
MAP = "d2t"
SIZE = "draft_vocab_size"


class CutHead(torch.nn.Module):
    """An output head that knows some tokens only; the others' logits are minus infinity, a legal way to say never."""

    token_ids: torch.Tensor

    def __init__(self, head: torch.nn.Linear, token_ids: torch.Tensor) -> None:
        """Keep the rows of token_ids, [K] int64 without repeats, of a head without bias."""
        super().__init__()
        self.width = head.weight.shape[0]
        self.register_buffer("token_ids", token_ids.to(head.weight.device))
        self.known = torch.nn.Linear(head.in_features, len(token_ids), bias=False, device="meta")
        self.known.weight = torch.nn.Parameter(head.weight.detach()[self.token_ids], requires_grad=False)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return logits, [..., width], of hidden states, [..., hidden]."""
        logits: torch.Tensor = self.known(hidden)
        whole = logits.new_full((*logits.shape[:-1], self.width), -torch.inf)
        return whole.scatter_(-1, self.token_ids.expand_as(logits), logits)


def draft_token_ids(folder: Path, size: Any, vocabulary_size: int) -> torch.Tensor:
    """Read the target's ids of a draft's tokens.

    Args:
        folder: the draft's.
        size: K as config.json says it.
        vocabulary_size: the real one; ids lie below it.

    Returns:
        [K] int64, on the CPU, none twice.

    Raises:
        ModelRefused: the file is missing, cannot be read, or contradicts the configuration or itself.
    """
    path = folder / DRAFT_VOCABULARY
    try:
        tensors = load_file(path)
    except (OSError, SafetensorError) as error:
        raise ModelRefused(f"{path} cannot be read: {error}") from error
    offsets = tensors.get(MAP)
    if offsets is None or offsets.dtype != torch.int64 or offsets.dim() != 1 or offsets.numel() == 0:
        raise ModelRefused(f"{path} must hold {MAP}, a row of int64 numbers")
    if offsets.numel() != size:
        raise ModelRefused(f"{path} maps {offsets.numel()} tokens, but config.json says {SIZE} = {size}")
    token_ids = offsets + torch.arange(offsets.numel())
    if token_ids.min() < 0 or token_ids.max() >= vocabulary_size:
        raise ModelRefused(f"{path} maps to token ids outside the vocabulary of {vocabulary_size}")
    if token_ids.unique().numel() != token_ids.numel():
        raise ModelRefused(f"{path} maps two tokens to the same id")
    return token_ids


def cut_head(network: Any, token_ids: torch.Tensor) -> None:
    """Put a head that knows these tokens only in the place of a network's own.

    Raises:
        ModelRefused: the head is no linear layer without bias.
    """
    head = network.get_output_embeddings()
    if not isinstance(head, torch.nn.Linear) or getattr(head, "bias", None) is not None:
        raise ModelRefused(f"a head of {type(head).__name__}, or with a bias, cannot be cut")
    network.set_output_embeddings(CutHead(head, token_ids))
