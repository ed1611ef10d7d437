"""Attention over a packed batch in which every session sees its own cache and nothing else.

The tokens of all sessions stand one behind the other in a batch of one. transformers hands every layer's projected
queries, keys and values to the function registered here (AttentionInterface), together with the ``RaggedPass`` that the
caller put into forward's keyword arguments; it builds no mask of its own (AttentionMaskInterface answers None).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional
from transformers import AttentionInterface, AttentionMaskInterface

from specdec.model.kv_cache import TensorCache

RAGGED = "specdec_ragged"

# What models hand over when their attention is more than scaled dot products over the whole prefix.
_UNSUPPORTED = ("sliding_window", "softcap", "s_aux")


@dataclass(frozen=True, slots=True)
class Span:
    """Where one session's tokens lie in the packed batch: [start, stop), to be appended to its cache.

    Attributes:
        cache: the session's.
        start: of its first token.
        stop: behind its last one.
        parents: of each token, the index of the cache's entry that it follows.
        branching: whether the tokens become branches; else they continue the sequence.
    """

    cache: TensorCache
    start: int
    stop: int
    parents: Sequence[int]
    branching: bool


class RaggedPass:
    """One forward pass over packed sessions: knows their spans and keeps their masks from layer to layer."""

    def __init__(self, spans: Sequence[Span]) -> None:
        """Serve these spans, which cover the batch without gaps."""
        self._spans = spans
        self._masks: dict[tuple[int, int], torch.Tensor] = {}

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float | None
    ) -> torch.Tensor:
        """Append keys and values to the caches and attend, session by session.

        Args:
            layer: index of the layer.
            query: [1, heads, total, head size].
            key: [1, key-value heads, total, head size].
            value: [1, key-value heads, total, value size].
            scaling: the model's factor on the scores; None is 1 / sqrt(head size).

        Returns:
            [1, total, heads, value size].
        """
        _, heads, total, _ = query.shape
        output = query.new_empty((1, total, heads, value.shape[-1]))
        for index, span in enumerate(self._spans):
            part = slice(span.start, span.stop)
            keys, values = span.cache.append(layer, key[0, :, part], value[0, :, part])
            output[0, part] = self._attend_one(index, query[0, :, part], keys, values, scaling).transpose(0, 1)
        return output

    def _attend_one(
        self, index: int, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scaling: float | None
    ) -> torch.Tensor:
        """Attend with the last n entries; [heads, n, value size].

        The query heads that share a key-value head become further rows of one head, so that keys and values are
        read once and never repeated.
        """
        heads, fed, size = query.shape
        groups = heads // keys.shape[0]
        rows = query.reshape(1, keys.shape[0], groups * fed, size)
        alone = fed == 1 and not self._spans[index].branching
        mask = None if alone else self._mask(index, groups, rows)
        result = functional.scaled_dot_product_attention(
            rows, keys.unsqueeze(0), values.unsqueeze(0), attn_mask=mask, scale=scaling
        )
        return result.view(heads, fed, values.shape[-1])

    def _mask(self, index: int, groups: int, rows: torch.Tensor) -> torch.Tensor:
        """Return the span's mask [groups * n, entries]: 0 where a row sees, -inf where it does not."""
        known = self._masks.get((index, groups))
        if known is None:
            seen = visibility(self._spans[index]).to(rows.device)
            hidden = rows.new_zeros(seen.shape).masked_fill_(~seen, float("-inf"))
            known = self._masks[index, groups] = hidden.repeat(groups, 1)
        return known


def visibility(span: Span) -> torch.Tensor:
    """Tell which entries each token of a span sees: its ancestors and itself.

    Returns:
        [n, entries] booleans, with the n fed tokens as the last entries.
    """
    cache, fed = span.cache, span.stop - span.start
    entries = cache.length + len(cache.branches) + fed
    if not span.branching:
        return torch.ones(fed, entries, dtype=torch.bool).tril(entries - fed)
    parents = [*cache.branches, *span.parents]
    seen = torch.zeros(len(parents), entries, dtype=torch.bool)
    for row, parent in enumerate(parents):
        seen[row, cache.length + row] = True
        if parent < cache.length:
            seen[row, : parent + 1] = True
        else:
            seen[row] |= seen[parent - cache.length]
    return seen[-fed:]


def ragged_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,  # noqa: ARG001
    scaling: float | None = None,
    *,
    ragged_pass: RaggedPass,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attend as transformers asks its attention functions to.

    Args:
        module: the layer's attention module; its layer_idx is used.
        query: [1, heads, total, head size].
        key: [1, key-value heads, total, head size].
        value: [1, key-value heads, total, value size].
        attention_mask: None, as the registered mask function answers.
        scaling: the model's factor on the scores.
        ragged_pass: the pass, from forward's keyword arguments.
        **kwargs: what else the model says of its attention.

    Returns:
        [1, total, heads, value size], and None in place of the attention weights.

    Raises:
        NotImplementedError: the model's attention is not full or not plain.
    """
    for name in _UNSUPPORTED:
        if kwargs.get(name) is not None:
            raise NotImplementedError(f"attention with {name} = {kwargs[name]} is not supported")
    layer: Any = module.layer_idx
    return ragged_pass.attend(layer, query, key, value, scaling), None


def _no_mask(*args: Any, **kwargs: Any) -> None:
    """Tell transformers that no mask is wanted: the spans say all."""


AttentionInterface.register(RAGGED, ragged_attention)
AttentionMaskInterface.register(RAGGED, _no_mask)
