"""What the engine needs of a model: forward passes over a ragged batch, and caches that can be cut.

Two real models implement it: Hugging Face causal LMs (``causal_lm``) and the synthetic model (``synthetic``).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch

from specdec.model.description import ModelDescription


class KVCache(Protocol):
    """The cache of one session: a length, a capacity, and whatever the model keeps beside them.

    Behind the sequence there may be entries that continue it in several ways at once (``Branches``). They have the
    indices length, length + 1, … and are no part of the sequence until one of them is adopted.

    Attributes:
        length: tokens of the sequence.
        capacity: tokens that room is allocated for, branches included; grown in steps by the model's forward pass.
        branches: of each entry behind the sequence, the index of the one that it follows, always a smaller one.
    """

    length: int
    capacity: int
    branches: list[int]

    def cut(self, length: int) -> None:
        """Forget everything from length on and all branches, in O(1). length is at most the present one."""

    def adopt(self, index: int) -> None:
        """Make the path that ends at an entry the sequence, and forget all other branches.

        The path's branch entries move behind the part of the sequence that they follow.
        """

    def capacity_for(self, length: int) -> int:
        """Return the capacity that holding length tokens needs, never below the present one."""


@dataclass(frozen=True, slots=True)
class Segment:
    """One session's part of a forward pass: tokens that continue its sequence. Branches behind it are forgotten.

    Attributes:
        cache: the session's; the pass appends the tokens to it.
        tokens: [n] ids to feed at positions cache.length, cache.length + 1, …; n is at least 1.
        rows: how many of the last n positions give logits, 0 to n.
    """

    cache: KVCache
    tokens: Sequence[int]
    rows: int

    @property
    def parents(self) -> Sequence[int]:
        """Of each token, the index of the cache's entry that it follows; -1 before the first."""
        return range(self.cache.length - 1, self.cache.length - 1 + len(self.tokens))

    @property
    def positions(self) -> Sequence[int]:
        """Of each token, its position in the session, before the pass."""
        return range(self.cache.length, self.cache.length + len(self.tokens))


@dataclass(frozen=True, slots=True)
class Branches(Segment):
    """Tokens that continue one session's sequence in several ways at once.

    They become entries behind the sequence and behind the branches that are there, and the sequence stays as it is. A
    token's position is that of its parent plus one, and it sees its ancestors and itself alone.

    Attributes:
        parents: [n] of each token, the index of the entry that it follows: one of the sequence, of earlier branches, or
            of the tokens before it in this pass.
    """

    parents: Sequence[int] = field()  # a bare annotation would take the property of Segment as its default

    @property
    def positions(self) -> Sequence[int]:
        """Of each token, its position in the session, before the pass."""
        length, held = self.cache.length, len(self.cache.branches)
        behind: list[int] = []  # positions of all entries behind the sequence
        for parent in (*self.cache.branches, *self.parents):
            behind.append(1 + (parent if parent < length else behind[parent - length]))
        return behind[held:]


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
            segments: at least one, no cache twice; ``Segment`` and ``Branches`` in any mixture.

        Returns:
            One [rows, vocabulary_size] tensor of logits a segment, on the device, float32 or float64.
        """
