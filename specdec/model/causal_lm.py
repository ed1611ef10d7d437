"""Hugging Face causal LMs behind the LanguageModel interface: one packed forward pass for sessions of any lengths."""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch

from specdec.model.attention import RaggedPass, Span
from specdec.model.description import ModelDescription
from specdec.model.kv_cache import TensorCache
from specdec.model.language_model import Branches, Segment


class CausalLM:
    """A transformers model with full attention, loaded with the attention of ``specdec.model.attention``.

    Attributes:
        description: the facts behind GetModelInfo.
        name: see ``LanguageModel``, as the following.
        vocabulary_size: real size; padded columns of the head are cut off.
        context_length: tokens a cache may hold.
        device: where weights, caches and logits live.
        network: the transformers model.
    """

    def __init__(self, network: Any, description: ModelDescription) -> None:
        """Serve a network that is in evaluation mode, on its device and in its dtype."""
        self.description = description
        self.name = description.name
        self.vocabulary_size = description.vocabulary_size
        self.context_length = description.context_length
        self.network = network
        self.device: torch.device = network.device
        self._logits_dtype = torch.float64 if network.dtype == torch.float64 else torch.float32

    def new_cache(self) -> TensorCache:
        """Return an empty cache, with nothing allocated yet."""
        return TensorCache()

    @torch.inference_mode()
    def forward(self, segments: Sequence[Segment]) -> list[torch.Tensor]:
        """Feed every segment in one pass and append to the caches; what they hold changes only when the pass succeeds.

        Args:
            segments: at least one, no cache twice, every cache from new_cache.

        Returns:
            One [rows, vocabulary_size] tensor a segment, float64 for a float64 model, else float32. They are inference
            tensors: they cannot be changed in place outside torch.inference_mode.

        Raises:
            ValueError: a segment is empty, asks for more rows than it feeds, or runs past the context.
        """
        for segment in segments:
            self.check(segment)
        spans = _spans(segments)
        rows = [row for span, segment in zip(spans, segments, strict=True) for row in _rows(span, segment)]
        output = self.network(
            input_ids=self._packed([token for segment in segments for token in segment.tokens]).unsqueeze(0),
            position_ids=self._packed([place for segment in segments for place in segment.positions]).unsqueeze(0),
            use_cache=False,
            logits_to_keep=self._packed(rows),
            ragged_pass=RaggedPass(spans),
        )
        for span in spans:
            if span.branching:
                span.cache.branches += span.parents
            else:
                span.cache.length += span.stop - span.start
        logits = output.logits[0, :, : self.vocabulary_size].to(self._logits_dtype)
        return list(logits.split([segment.rows for segment in segments]))

    def check(self, segment: Segment) -> None:
        """Find out, before a pass, whether it can feed a segment.

        Raises:
            ValueError: it is empty, asks for more rows than it feeds, or runs past the context.
        """
        fed = len(segment.tokens)
        if not (fed >= 1 and 0 <= segment.rows <= fed):
            raise ValueError(f"a segment of {fed} tokens cannot give {segment.rows} rows")
        if max(segment.positions) >= self.context_length:
            raise ValueError(f"{max(segment.positions) + 1} tokens exceed the context of {self.context_length}")

    def _packed(self, numbers: list[int]) -> torch.Tensor:
        return torch.tensor(numbers, dtype=torch.long, device=self.device)


def _spans(segments: Sequence[Segment]) -> list[Span]:
    """Lay the segments one behind the other and make room in their caches."""
    stops = accumulate(len(segment.tokens) for segment in segments)
    spans = []
    for segment, stop in zip(segments, stops, strict=True):
        cache: Any = segment.cache
        branching = isinstance(segment, Branches)
        if not branching:
            cache.cut(cache.length)
        cache.reserve(cache.length + len(cache.branches) + len(segment.tokens))
        spans.append(Span(cache, stop - len(segment.tokens), stop, segment.parents, branching))
    return spans


def _rows(span: Span, segment: Segment) -> range:
    """Return the packed indices whose logits are wanted."""
    return range(span.stop - segment.rows, span.stop)
