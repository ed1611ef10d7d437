"""What the engine needs of a model: forward passes over a ragged batch, and caches that can be cut.

Two real models implement it: Hugging Face causal LMs (``causal_lm``) and the synthetic model (``synthetic``).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from specdec.model.description import ModelDescription


class KVCache(Protocol):
    """The cache of one session: a length, a capacity, and whatever the model keeps beside them.

    Attributes:
        length: tokens held.
        capacity: tokens that room is allocated for; grown in steps by the model's forward pass.
    """

    length: int
    capacity: int

    def cut(self, length: int) -> None:
        """Forget everything from length on, in O(1). length is at most the present one."""

    def capacity_for(self, length: int) -> int:
        """Return the capacity that holding length tokens needs, never below the present one."""


@dataclass(frozen=True, slots=True)
class Segment:
    """One session's part of a forward pass.

    Attributes:
        cache: the session's; the pass appends the tokens to it.
        tokens: [n] ids to feed at positions cache.length, cache.length + 1, …; n is at least 1.
        rows: how many of the last n positions give logits, 0 to n.
    """

    cache: KVCache
    tokens: Sequence[int]
    rows: int


class LanguageModel(Protocol):
    """A model that serves sessions of different lengths in one forward pass.

    Attributes:
        name: hub id, folder or synthetic description.
        vocabulary_size: real size; logits have exactly this many columns.
        context_length: tokens a cache may hold.
        device: where logits live.
        description: what GetModelInfo says of it.
    """

    name: str
    vocabulary_size: int
    context_length: int
    device: torch.device
    description: ModelDescription

    def new_cache(self) -> KVCache:
        """Return an empty cache, with nothing allocated yet."""

    def forward(self, segments: Sequence[Segment]) -> list[torch.Tensor]:
        """Feed every segment in one pass and append to the caches.

        No segment's numbers depend on another's presence beyond rounding.

        Args:
            segments: at least one, no cache twice.

        Returns:
            One [rows, vocabulary_size] tensor of logits a segment, on the device, float32 or float64.
        """
