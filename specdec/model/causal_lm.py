"""Hugging Face causal LMs behind the LanguageModel interface: one packed forward pass for sessions of any lengths."""

from collections.abc import Sequence
from itertools import accumulate, chain
from typing import Any

import torch

from specdec.model.attention import Grouping, PassAttention, RaggedPass, groupings
from specdec.model.attention_calls import Span
from specdec.model.description import ModelDescription
from specdec.model.kv_arena import Arena, TensorCache
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
        grouping: which sessions share a call of attention.
        arena: where all caches' keys and values are.
        logits_dtype: float64 for a float64 model, else float32.
    """

    def __init__(self, network: Any, description: ModelDescription) -> None:
        """Serve a network that is in evaluation mode, on its device and in its dtype."""
        self.description = description
        self.name = description.name
        self.vocabulary_size = description.vocabulary_size
        self.context_length = description.context_length
        self.network = network
        self.device: torch.device = network.device
        self.grouping: Grouping = groupings(self.device, network.dtype)[-1]
        self.arena = Arena()
        self.logits_dtype = torch.float64 if network.dtype == torch.float64 else torch.float32

    def new_cache(self) -> TensorCache:
        """Return an empty cache, with nothing allocated yet."""
        return TensorCache(self.arena)

    @torch.inference_mode()
    def forward(self, segments: Sequence[Segment]) -> list[torch.Tensor]:
        """Feed every segment in one pass and append to the caches; what they hold changes only when the pass succeeds.

        Args:
            segments: at least one, no cache twice, every cache from new_cache.

        Returns:
            One [rows, vocabulary_size] tensor of ``logits_dtype`` a segment. They are inference tensors: they cannot be
            changed in place outside torch.inference_mode.

        Raises:
            ValueError: a segment is empty, asks for more rows than it feeds, or runs past the context.
        """
        for segment in segments:
            self.check(segment)
        ragged_pass = RaggedPass(self.arena, self.grouping(spans_of(segments)))
        packed = ragged_pass.spans
        ids, positions, rows, *numbers = self.sent(
            [
                [token for span in packed for token in span.segment.tokens],
                [position for span in packed for position in span.segment.positions],
                _rows(segments, packed),
                *ragged_pass.numbers,
            ]
        )
        ragged_pass.receive(numbers)
        logits = self.logits(ids, positions, rows, ragged_pass)
        for span in packed:
            span.count()
        return list(logits.split([segment.rows for segment in segments]))

    def logits(
        self, ids: torch.Tensor, positions: torch.Tensor, rows: torch.Tensor, attention: PassAttention
    ) -> torch.Tensor:
        """Run the network over packed tokens.

        Args:
            ids: [total] token ids.
            positions: [total] positions in their sessions.
            rows: [wanted] of the packed tokens, those whose logits are wanted.
            attention: keeps what the layers hand over, and attends.

        Returns:
            [wanted, vocabulary_size] of ``logits_dtype``.
        """
        output = self.network(
            input_ids=ids.unsqueeze(0),
            position_ids=positions.unsqueeze(0),
            use_cache=False,
            logits_to_keep=rows,
            ragged_pass=attention,
        )
        logits: torch.Tensor = output.logits[0, :, : self.vocabulary_size].to(self.logits_dtype)
        return logits

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

    def sent(self, lists: Sequence[Sequence[int]]) -> Sequence[torch.Tensor]:
        """Return the lists as tensors on the device, sent in one copy that nobody waits for."""
        pinned = self.device.type == "cuda"
        numbers = torch.tensor([*chain.from_iterable(lists)], dtype=torch.long, pin_memory=pinned)
        sent: Sequence[torch.Tensor] = numbers.to(self.device, non_blocking=pinned).split([*map(len, lists)])
        return sent


def spans_of(segments: Sequence[Segment]) -> list[Span]:
    """Forget the branches that are not continued, and make room in the caches."""
    spans = []
    for segment in segments:
        cache: Any = segment.cache
        if not isinstance(segment, Branches):
            cache.cut(cache.length)
        cache.reserve(cache.entries + len(segment.tokens))
        spans.append(Span(segment, cache, cache.entries))
    return spans


def _rows(segments: Sequence[Segment], packed: Sequence[Span]) -> list[int]:
    """Return the packed indices whose logits are wanted, in the order of the segments."""
    stops = accumulate(span.fed for span in packed)
    stop_of = {id(span.segment): stop for span, stop in zip(packed, stops, strict=True)}
    return [row for segment in segments for row in range(stop_of[id(segment)] - segment.rows, stop_of[id(segment)])]
