"""Attention over a packed batch in which every session sees its own cache and nothing else.

The tokens of all sessions stand one behind the other in a batch of one. transformers hands every layer's projected
queries, keys and values to the function registered here (AttentionInterface), together with the ``RaggedPass`` that the
caller put into forward's keyword arguments. No mask function is registered beside it, and so transformers makes no mask
and does not look for packed sequences in the positions, which would wait for the device.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from typing import Any, Protocol

import torch
from transformers import AttentionInterface

from specdec.model.attention_calls import NeighbourCall, PageCall, Span
from specdec.model.flash_call import flash_calls
from specdec.model.kv_arena import Arena

RAGGED = "specdec_ragged"

# What models hand over when their attention is more than scaled dot products over the whole prefix.
_UNSUPPORTED = ("sliding_window", "softcap", "s_aux")


class AttentionCall(Protocol):
    """One call of a layer's attention, over some of the sessions: ``PaddedCall``, ``FlashCall``."""

    spans: Sequence[Span]
    padded: list[int]
    places: list[int]
    numbers: list[list[int]]

    def rubbish(self) -> list[int]:
        """Return rows of the arena to clear before the pass."""

    def receive(self, numbers: Sequence[torch.Tensor]) -> None:
        """Take ``numbers`` as they have come to the device."""

    def attend(
        self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scaling: float | None
    ) -> torch.Tensor:
        """Attend with the call's rows; see ``PaddedCall``."""


Grouping = Callable[[Sequence[Span]], Sequence[AttentionCall]]


class PassAttention(Protocol):
    """The attention of one forward pass: ``RaggedPass``, ``StaticPass``."""

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float | None
    ) -> torch.Tensor:
        """Append keys and values to the caches and attend; see ``RaggedPass``."""


def groupings(device: torch.device, dtype: torch.dtype) -> list[Grouping]:
    """Return the ways to share calls among sessions that a device has, the best one first, the last one for any case.

    On the CPU copying keys and values together costs as much as attending to them, so calls read them in place. On
    other devices a call's launch is what costs; flash attention, where it is, needs neither copies nor padding.
    """
    if device.type == "cpu":
        return [NeighbourCall.calls]
    ways: list[Grouping] = [PageCall.calls]
    half = dtype in (torch.float16, torch.bfloat16)
    if device.type == "cuda" and half and torch.cuda.get_device_capability(device) >= (8, 0):
        from torch.nn.attention.varlen import varlen_attn

        ways.insert(0, partial(flash_calls, kernel=varlen_attn))
    return ways


class RaggedPass:
    """One forward pass over packed sessions.

    Attributes:
        spans: in the order in which their tokens are packed.
        numbers: lists of integers for ``receive``.
    """

    def __init__(self, arena: Arena, calls: Sequence[AttentionCall]) -> None:
        """Lay the calls out one behind the other.

        Args:
            arena: of all caches.
            calls: at least one; each session is in one of them, with room for what it feeds.
        """
        self._arena = arena
        self._calls = calls
        self.spans = [span for call in calls for span in call.spans]
        padded: list[int] = []
        places: list[int] = []
        for call in calls:
            row, token = len(padded), len(places)
            places += [row + place for place in call.places]
            padded += [token + packed for packed in call.padded]
        self._even = len(padded) == len(places)
        rubbish = [row for call in calls for row in call.rubbish()]
        written = [row for span in self.spans for row in span.cache.next_rows(span.fed)]
        self.numbers = [rubbish, written, padded, places, *chain.from_iterable(call.numbers for call in calls)]

    def receive(self, numbers: Sequence[torch.Tensor]) -> None:
        """Take ``numbers`` as they have come to the device."""
        rubbish, self._written, self._padded, self._places, *rest = numbers
        if len(rubbish):
            self._arena.clear(rubbish)
        for call in self._calls:
            call.receive(rest[: len(call.numbers)])
            rest = rest[len(call.numbers) :]

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float | None
    ) -> torch.Tensor:
        """Append keys and values to the caches and attend.

        Args:
            layer: index of the layer.
            query: [1, heads, total, head size].
            key: [1, key-value heads, total, head size].
            value: [1, key-value heads, total, value size].
            scaling: the model's factor on the scores; None is 1 / sqrt(head size).

        Returns:
            [1, total, heads, value size].
        """
        keys, values = self._arena.write(layer, self._written, key[0], value[0])
        rows = query[0] if self._even else query[0].index_select(1, self._padded)
        parts = rows.split([len(call.padded) for call in self._calls], dim=1)
        results = [call.attend(part, keys, values, scaling) for call, part in zip(self._calls, parts, strict=True)]
        result = results[0] if len(results) == 1 else torch.cat(results)
        return (result if self._even else result.index_select(0, self._places)).unsqueeze(0)


def ragged_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,  # noqa: ARG001
    scaling: float | None = None,
    *,
    ragged_pass: PassAttention,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attend as transformers asks its attention functions to.

    Args:
        module: the layer's attention module; its layer_idx is used.
        query: [1, heads, total, head size].
        key: [1, key-value heads, total, head size].
        value: [1, key-value heads, total, value size].
        attention_mask: None: there is no mask function of this name.
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


AttentionInterface.register(RAGGED, ragged_attention)
