"""Variable-length flash attention over any number of sessions that continue their sequences, in one call."""

from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import Any

import torch

from specdec.model.attention_calls import PaddedCall, PageCall, Span
from specdec.model.language_model import Branches


class FlashCall:
    """One call over the packed tokens as they come; keys and values are read where they lie.

    Every cache's rows are neighbours, so the kernel's cumulative lengths of keys are the arena's rows at which caches
    start, and its used lengths are the entries. It is causal from the last token on, and has no masks of other kinds.

    Attributes:
        spans, padded, places, numbers: see ``PaddedCall``; nothing is padded.
    """

    def __init__(self, spans: Iterable[Span], kernel: Callable[..., Any]) -> None:
        """Lay the spans out, by their places in the arena.

        Args:
            spans: none of branches.
            kernel: with the signature of ``torch.nn.attention.varlen.varlen_attn``.
        """
        self.spans: Sequence[Span] = sorted(spans, key=lambda span: span.cache.start)
        self._kernel = kernel
        fed = [span.fed for span in self.spans]
        self.padded = self.places = list(range(sum(fed)))
        last = self.spans[-1].cache
        starts = [*(span.cache.start for span in self.spans), last.start + last.capacity]
        stops = [span.stop for span in self.spans]
        self._most_fed, self._longest = max(fed), max(stops)
        self.numbers: list[list[int]] = [[0, *accumulate(fed)], starts, stops]

    def rubbish(self) -> list[int]:
        """Return nothing: no row beyond the entries is read."""
        return []

    def receive(self, numbers: Sequence[torch.Tensor]) -> None:
        """Take ``numbers`` as they have come to the device."""
        self._offsets, self._starts, self._stops = (number.to(torch.int32) for number in numbers)

    def attend(
        self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scaling: float | None
    ) -> torch.Tensor:
        """Attend with the call's rows; see ``PaddedCall``."""
        result: torch.Tensor = self._kernel(
            query.transpose(0, 1),
            keys,
            values,
            self._offsets,
            self._starts,
            self._most_fed,
            self._longest,
            scale=scaling,
            window_size=(-1, 0),
            enable_gqa=True,
            seqused_k=self._stops,
        )
        return result


def flash_calls(spans: Sequence[Span], kernel: Callable[..., Any]) -> list[FlashCall | PaddedCall]:
    """Return one call for all spans that continue their sequences, and padded ones for branches."""
    plain = [span for span in spans if not isinstance(span.segment, Branches)]
    calls: list[FlashCall | PaddedCall] = [FlashCall(plain, kernel)] if plain else []
    return [*calls, *PageCall.calls(span for span in spans if isinstance(span.segment, Branches))]
