"""A pass over a few tokens of which nothing but numbers in a buffer changes: neither shapes nor addresses.

Every token is a row of the batch of its own, which reads the pages of its session up to itself; rows and pages are
padded to powers of two. What pads is a token of a cache that is no session's, so it writes where nobody reads.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional

from specdec.model.attention_calls import Span, pages_together
from specdec.model.causal_lm import CausalLM
from specdec.model.kv_cache import STEP
from specdec.model.language_model import Segment


@dataclass(frozen=True, slots=True)
class Shape:
    """What a pass is padded to; powers of two.

    Attributes:
        tokens: rows of the batch.
        pages: of STEP entries, read by each token.
    """

    tokens: int
    pages: int

    @classmethod
    def of(cls, segments: Sequence[Segment]) -> "Shape":
        """Return the smallest shape that holds the segments, before they are fed."""
        longest = max(segment.cache.length + len(segment.tokens) for segment in segments)
        return cls(power_of_two(sum(len(segment.tokens) for segment in segments)), pages_of(longest))

    @property
    def sizes(self) -> list[int]:
        """Of the parts of ``packed_numbers``."""
        return [*[self.tokens] * 5, self.tokens * self.pages]


def pages_of(length: int) -> int:
    """Return the power of two of pages in which so many entries fit."""
    return power_of_two(-(-length // STEP))


def power_of_two(least: int) -> int:
    """Return the smallest power of two that is not below ``least``."""
    return 1 << max(least - 1, 0).bit_length()


def packed_numbers(spans: Sequence[Span], shape: Shape, padding: Span) -> list[int]:
    """Return all that a pass of this shape must know, and take the caches' next rows as written.

    Args:
        spans: with room in their caches; none of branches.
        shape: holds them.
        padding: one token of a cache that is no session's.

    Returns:
        Of each token its id, its position, the arena's row to write and how many entries it sees; the tokens whose
        logits are wanted, in the order of the spans; and of each token the arena's pages to read.
    """
    ids: list[int] = []
    positions: list[int] = []
    written: list[int] = []
    seen: list[int] = []
    wanted: list[int] = []
    pages: list[int] = []
    for span in [*spans, *[padding] * (shape.tokens - sum(span.fed for span in spans))]:
        ids += span.segment.tokens
        positions += span.segment.positions
        written += span.cache.next_rows(span.fed)
        seen += span.seen()
        wanted += range(len(ids) - span.segment.rows, len(ids))
        pages += span.pages(shape.pages) * span.fed
    wanted += [0] * (shape.tokens - len(wanted))
    return [*ids, *positions, *written, *seen, *wanted, *pages]


class StaticPass:
    """The passes of one shape: each reads the numbers and the caches that there are when it runs."""

    def __init__(self, model: CausalLM, shape: Shape, numbers: torch.Tensor, logits: torch.Tensor) -> None:
        """Take the places of what goes in and what comes out, which must stay.

        Args:
            model: runs the passes.
            shape: of all of them.
            numbers: begins with the ``packed_numbers`` of the pass to run, on the device.
            logits: [at least tokens, vocabulary_size]; its first rows get the wanted logits.
        """
        self._model = model
        self._shape = shape
        parts = numbers[: sum(shape.sizes)].split(shape.sizes)
        self._ids, self._positions, self._written, self._seen, self._wanted, self._pages = parts
        self._logits = logits[: shape.tokens]

    def run(self) -> None:
        """Run a pass; the host decides nothing in it, and so it can be recorded."""
        hidden = torch.arange(self._shape.pages * STEP, device=self._seen.device) >= self._seen.unsqueeze(1)
        mask = torch.zeros(hidden.shape, dtype=self._model.network.dtype, device=hidden.device)
        self._mask = mask.masked_fill_(hidden, float("-inf")).view(self._shape.tokens, 1, 1, -1)
        self._logits.copy_(self._model.logits(self._ids, self._positions, self._wanted, self))

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float | None
    ) -> torch.Tensor:
        """Append keys and values to the caches and attend; see ``RaggedPass``.

        As in ``PaddedCall``, the query heads that share a key-value head become rows of one head.
        """
        keys, values = self._model.arena.write(layer, self._written, key[0], value[0])
        tokens, heads = self._shape.tokens, keys.shape[1]
        result: torch.Tensor = functional.scaled_dot_product_attention(
            query[0].transpose(0, 1).reshape(tokens, heads, query.shape[1] // heads, -1),
            pages_together(keys, self._pages, tokens),
            pages_together(values, self._pages, tokens),
            attn_mask=self._mask,
            scale=scaling,
        )
        return result.reshape(1, tokens, query.shape[1], -1)
