"""The model behind a draft that needs none: any tokens, as many as there is room for, and never a forward pass."""

from collections.abc import Sequence

import torch

from specdec.model.description import ModelDescription
from specdec.model.language_model import Segment

LOOKUP = "lookup:"  # alone or before a model's name; the draft service knows what it means
TOKEN_IDS = 2**32  # what the wire can carry


class EmptyCache:
    """Holds nothing; the room that a session takes is that of its tokens.

    Attributes:
        length: 0.
        capacity: 0.
        branches: none.
    """

    length = 0
    capacity = 0

    def __init__(self) -> None:
        """Hold nothing."""
        self.branches: list[int] = []

    def cut(self, length: int) -> None:
        """Leave nothing as it is."""

    def adopt(self, index: int) -> None:
        """Leave nothing as it is: nothing is ever fed that could be adopted."""

    def capacity_for(self, length: int) -> int:
        """Return the room that knowing ``length`` tokens takes."""
        return length


class LookupModel:
    """What the engine holds sessions for where nothing is computed.

    Attributes:
        name: see ``LanguageModel``, as the following.
        vocabulary_size: every id that can be sent; the description says 0, none of its own.
        context_length: tokens a session may hold.
        device: the CPU.
        description: the facts behind GetModelInfo.
    """

    def __init__(self, context_length: int) -> None:
        """Take sessions of up to ``context_length`` tokens."""
        self.name = LOOKUP
        self.vocabulary_size = TOKEN_IDS
        self.context_length = context_length
        self.device = torch.device("cpu")
        self.description = ModelDescription(
            name=LOOKUP,
            model_fingerprint="",
            vocabulary_fingerprint="",
            vocabulary_size=0,
            context_length=context_length,
            eos_token_ids=(),
            tokenizer="",
        )

    def new_cache(self) -> EmptyCache:
        """Return a cache that holds nothing."""
        return EmptyCache()

    def forward(self, segments: Sequence[Segment]) -> list[torch.Tensor]:
        """Fail: a work that asks this model for logits is a mistake."""
        raise NotImplementedError(f"a lookup has no logits, and {len(segments)} sessions were fed to it")
