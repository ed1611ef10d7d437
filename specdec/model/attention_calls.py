"""The calls that one layer's attention over a packed batch takes, and which sessions share one.

A call serves sessions that feed about as many tokens each: their tokens are padded to a rectangle of queries, their
entries to a rectangle of keys and values, and a mask hides what is padding. On the CPU it reads keys and values where
they lie, so it serves neighbours in the arena; elsewhere it copies pages together, so it serves anybody.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from torch.nn import functional

from specdec.model.kv_arena import TensorCache
from specdec.model.kv_cache import STEP
from specdec.model.language_model import Branches, Segment

# Tokens up to which sessions may be padded to each other: decoding, verification. Those that feed more share a call
# only with those that feed exactly as many. Rows of queries cost little beside the keys and values that they need.
WIDTHS = (1, 8, 32)


@dataclass(frozen=True, slots=True)
class Span:
    """One session's part of a packed pass.

    Attributes:
        segment: what is fed.
        cache: the session's.
        held: entries before the pass.
    """

    segment: Segment
    cache: TensorCache
    held: int

    @property
    def fed(self) -> int:
        """Number of tokens."""
        return len(self.segment.tokens)

    @property
    def stop(self) -> int:
        """Number of entries after the pass."""
        return self.held + self.fed

    @property
    def width(self) -> int:
        """Tokens to which this span may be padded: what sessions that share a call have in common."""
        return next((width for width in WIDTHS if self.fed <= width), self.fed)

    def count(self) -> None:
        """Let the cache hold what has been fed."""
        if isinstance(self.segment, Branches):
            self.cache.branches += self.segment.parents
        else:
            self.cache.length += self.fed

    def seen(self) -> list[int]:
        """Return, of each token, how many leading entries it sees; branch tokens see some further ones too."""
        if not isinstance(self.segment, Branches):
            return list(range(self.held + 1, self.stop + 1))
        counts: list[int] = []
        for parent in (*self.cache.branches, *self.segment.parents):
            counts.append(parent + 1 if parent < self.cache.length else counts[parent - self.cache.length])
        return counts[-self.fed :]

    def further(self) -> list[list[int]]:
        """Return, of each token, which entries behind the sequence it sees: its ancestors there and itself."""
        if not isinstance(self.segment, Branches):
            return [[] for _ in self.segment.tokens]
        paths: list[list[int]] = []
        for entry, parent in enumerate((*self.cache.branches, *self.segment.parents), self.cache.length):
            paths.append([*(paths[parent - self.cache.length] if parent >= self.cache.length else []), entry])
        return paths[-self.fed :]

    def pages(self, count: int) -> list[int]:
        """Return ``count`` of the arena's pages of STEP entries, the session's own; further ones repeat its first."""
        first, own = self.cache.start // STEP, self.cache.capacity // STEP
        return [first + (page if page < own else 0) for page in range(count)]

    def rubbish(self, length: int) -> range:
        """Return the arena's rows beyond the session's entries in which something may stand, if any is read.

        They are taken as cleared: scores that are hidden weigh 0, and 0 times what a broken pass left is no number.

        Args:
            length: entries of the session's room that are read.
        """
        cache = self.cache
        if self.stop >= min(length, cache.written):
            return range(0)
        rows = range(cache.start + self.stop, cache.start + cache.written)
        cache.written = self.stop
        return rows


class PaddedCall:
    """One call of scaled dot products over the sessions of some spans.

    Attributes:
        spans: in the order in which their tokens are packed.
        padded: of each row of queries, the packed token that it holds, counted from the call's first; rows that pad
            repeat one.
        places: of each packed token, its row.
        numbers: lists of integers for ``receive``.
    """

    def __init__(self, spans: Sequence[Span]) -> None:
        """Lay the spans out."""
        self.spans = spans
        self.padded: list[int] = []
        self.places: list[int] = []
        self._width = max(span.fed for span in spans)
        self._length = max(span.stop for span in spans)
        self._masks: dict[int, torch.Tensor] = {}
        seen: list[int] = []
        further: list[int] = []
        for index, span in enumerate(spans):
            row, first = index * self._width, len(self.places)
            self.places += range(row, row + span.fed)
            self.padded += [*range(first, first + span.fed), *[first] * (self._width - span.fed)]
            seen += [*span.seen(), *[1] * (self._width - span.fed)]
            for place, entries in enumerate(span.further(), row):
                further += [place * self._length + entry for entry in entries]
        # A single token that continues its sequence sees all there is.
        self._masked = len(spans) > 1 or self._width > 1 or bool(further)
        self.numbers: list[list[int]] = [seen, further, self._pages()]

    def rubbish(self) -> list[int]:
        """Return what is to be cleared before the call, see ``Span``."""
        return [row for span in self.spans for row in span.rubbish(self._length)]

    def receive(self, numbers: Sequence[torch.Tensor]) -> None:
        """Take ``numbers`` as they have come to the device."""
        self._seen, self._further, self._page_numbers = numbers

    def attend(
        self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scaling: float | None
    ) -> torch.Tensor:
        """Attend with the call's rows.

        The query heads that share a key-value head become further rows of one head, so that keys and values are
        read once and never repeated.

        Args:
            query: [heads, rows, head size].
            keys: [arena, key-value heads, head size].
            values: [arena, key-value heads, value size].
            scaling: factor on the scores; None is 1 / sqrt(head size).

        Returns:
            [rows, heads, value size].
        """
        sessions, heads, width = len(self.spans), keys.shape[1], self._width
        shared = query.shape[0] // heads
        folded = query.reshape(heads, shared, sessions, width, -1).permute(2, 0, 1, 3, 4)
        result: torch.Tensor = functional.scaled_dot_product_attention(
            folded.reshape(sessions, heads, shared * width, -1),
            self._together(keys),
            self._together(values),
            attn_mask=self._mask(shared, query) if self._masked else None,
            scale=scaling,
        )
        apart = result.reshape(sessions, heads, shared, width, -1).permute(0, 3, 1, 2, 4)
        return apart.reshape(sessions * width, heads * shared, -1)

    def _pages(self) -> list[int]:
        raise NotImplementedError

    def _together(self, held: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError

    def _mask(self, shared: int, query: torch.Tensor) -> torch.Tensor:
        """Return [sessions, 1, shared * width, length]: 0 where a row sees, -inf where it does not."""
        known = self._masks.get(shared)
        if known is None:
            hidden = torch.arange(self._length, device=query.device) >= self._seen.unsqueeze(1)
            mask = torch.zeros(hidden.shape, dtype=query.dtype, device=query.device)
            mask.masked_fill_(hidden, float("-inf")).view(-1).index_fill_(0, self._further, 0)
            known = mask.view(len(self.spans), 1, self._width, self._length).repeat(1, 1, shared, 1)
            self._masks[shared] = known
        return known


class NeighbourCall(PaddedCall):
    """A padded call of caches of one capacity that lie side by side in the arena: nothing is copied."""

    def _pages(self) -> list[int]:
        return []

    def _together(self, held: torch.Tensor) -> torch.Tensor:
        """Return a view, [sessions, heads, length, size]."""
        first = self.spans[0].cache
        row, head, one = held.stride()
        size = (len(self.spans), held.shape[1], self._length, held.shape[2])
        # Several narrowed and transposed views in one: in a pass over one token every further call is felt.
        return held.as_strided(size, (first.capacity * row, head, row, one), first.start * row)

    @classmethod
    def calls(cls, spans: Iterable[Span]) -> list["NeighbourCall"]:
        """Return as few calls as the places in the arena allow."""
        runs: list[list[Span]] = []
        for span in sorted(spans, key=lambda span: (span.width, span.cache.capacity, span.cache.start)):
            if not (runs and _side_by_side(runs[-1][-1], span)):
                runs.append([])
            runs[-1].append(span)
        return [cls(run) for run in runs]


class PageCall(PaddedCall):
    """A padded call that copies the sessions' pages of STEP entries together."""

    def _pages(self) -> list[int]:
        """Return [sessions, pages] of the arena."""
        count = -(-self._length // STEP)
        return [page for span in self.spans for page in span.pages(count)]

    def _together(self, held: torch.Tensor) -> torch.Tensor:
        """Return a copy, [sessions, heads, length, size]."""
        return pages_together(held, self._page_numbers, len(self.spans)).narrow(2, 0, self._length)

    @classmethod
    def calls(cls, spans: Iterable[Span]) -> list["PageCall"]:
        """Return one call for all spans of one width that are padded to less than twice their pages."""

        def shape(span: Span) -> tuple[int, int]:
            return span.width, (span.cache.capacity // STEP).bit_length()

        return [cls(list(alike)) for _, alike in groupby(sorted(spans, key=shape), shape)]


def pages_together(held: torch.Tensor, pages: torch.Tensor, sessions: int) -> torch.Tensor:
    """Copy as many pages for each session together.

    Args:
        held: [arena, heads, size].
        pages: [sessions * count] of STEP entries of the arena.
        sessions: how many there are.

    Returns:
        [sessions, heads, count * STEP, size].
    """
    copied: torch.Tensor = held.view(-1, STEP, *held.shape[1:]).index_select(0, pages)
    return copied.view(sessions, -1, *held.shape[1:]).transpose(1, 2)


def _side_by_side(first: Span, second: Span) -> bool:
    one, two = first.cache, second.cache
    return first.width == second.width and one.capacity == two.capacity and one.start + one.capacity == two.start
