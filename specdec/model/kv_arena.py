"""Where a model keeps the keys and values of all its sessions: one pair of tensors a layer.

One place for all of them lets a layer append a whole batch in one call, and attend to neighbours, or to pages of
anybody, without a call a session.
"""

from collections.abc import Sequence
from weakref import WeakSet

import torch

from specdec.model.kv_cache import STEP, SteppedCache

SLACK = 4  # a new arena has room for one in four tokens more: growing by every step would copy everything every time


class TensorCache(SteppedCache):
    """Keys and values of one session: ``capacity`` rows of the arena, from ``start`` on.

    Attributes:
        start: the arena's row of the first entry.
        written: entries, held or not, that may have been written since the rows were last cleared.
    """

    def __init__(self, arena: "Arena") -> None:
        """Start empty, with no rows."""
        super().__init__()
        self.start = 0
        self.written = 0
        self._arena = arena

    @property
    def layer_count(self) -> int:
        """Number of layers that keep keys and values."""
        return len(self._arena.layers)

    def reserve(self, length: int) -> None:
        """Make length tokens fit from now on; the rows may move, of other caches too."""
        capacity = self.capacity_for(length)
        if capacity > self.capacity:
            self._arena.place(self, capacity)

    def next_rows(self, count: int) -> range:
        """Return the arena's rows of the next ``count`` entries, which are to be written."""
        self.written = max(self.written, self.entries + count)
        return range(self.start + self.entries, self.start + self.entries + count)

    def move(self, entries: list[int], start: int) -> None:
        """Copy the keys and values of some entries to ``start`` and the places that follow."""
        if entries and entries != list(range(start, start + len(entries))):
            self._arena.move([self.start + entry for entry in entries], self.start + start)


class Arena:
    """Rows of keys and values, of which every living cache owns ``capacity`` neighbouring ones; whole steps each.

    A cache that nobody holds any more owns nothing: there is no giving back. Memory follows the largest sum of
    capacities so far, at most one part in SLACK above it; it is touched when it is first written.

    Attributes:
        size: rows of every tensor.
        builds: how often the tensors have been made anew; addresses that were taken before are void.
        layers: [size, key-value heads, head size] keys and [size, key-value heads, value size] values of each layer.
    """

    def __init__(self) -> None:
        """Start with nothing allocated."""
        self.size = 0
        self.builds = 0
        self.layers: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._caches: WeakSet[TensorCache] = WeakSet()

    def write(
        self, layer: int, rows: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write a layer's keys and values of a pass.

        Args:
            layer: index of the layer; layers come in order.
            rows: [total] where to, on the device.
            keys: [key-value heads, total, head size].
            values: [key-value heads, total, value size].

        Returns:
            The layer's tensors.
        """
        if layer == len(self.layers):
            self.layers.append((self._empty(keys.transpose(0, 1)), self._empty(values.transpose(0, 1))))
        held_keys, held_values = self.layers[layer]
        held_keys.index_copy_(0, rows, keys.transpose(0, 1))
        held_values.index_copy_(0, rows, values.transpose(0, 1))
        return held_keys, held_values

    @torch.inference_mode()
    def move(self, rows: Sequence[int], start: int) -> None:
        """Copy some rows, in ascending order, to ``start`` and the rows that follow."""
        for held in self._tensors():
            held[start : start + len(rows)] = held[rows]

    @torch.inference_mode()
    def clear(self, rows: torch.Tensor) -> None:
        """Zero some rows: a padded call multiplies what it does not see by 0, which must not be infinite."""
        for held in self._tensors():
            held.index_fill_(0, rows, 0)

    @torch.inference_mode()
    def place(self, cache: TensorCache, capacity: int) -> None:
        """Give a cache more rows, with what it holds; where no gap is wide enough, all caches move to a new arena."""
        others = [other for other in self._caches if other is not cache]
        start = _gap([(other.start, other.start + other.capacity) for other in others], capacity)
        if start + capacity <= self.size:
            if start != cache.start:
                for held in self._tensors():
                    held[start : start + cache.entries] = held[cache.start : cache.start + cache.entries].clone()
            cache.start, cache.capacity = start, capacity
        else:
            cache.capacity = capacity
            self._rebuild([*sorted(others, key=lambda other: other.start), cache])
        cache.written = capacity  # whoever had the rows before
        self._caches.add(cache)

    def _rebuild(self, caches: list[TensorCache]) -> None:
        """Lay the caches one behind the other, those of one capacity side by side, one layer after the other."""
        caches.sort(key=lambda cache: cache.capacity)
        total = sum(cache.capacity for cache in caches)
        self.size = max(self.size, (total + total // SLACK) // STEP * STEP)
        self.builds += 1
        starts = [0]
        for cache in caches:
            starts.append(starts[-1] + cache.capacity)
        for layer, tensors in enumerate(self.layers):
            keys, values = (self._empty(held) for held in tensors)
            for old, new in zip(tensors, (keys, values), strict=True):
                for cache, start in zip(caches, starts, strict=False):
                    new[start : start + cache.entries] = old[cache.start : cache.start + cache.entries]
            self.layers[layer] = (keys, values)
        for cache, start in zip(caches, starts, strict=False):
            cache.start = start

    def _tensors(self) -> list[torch.Tensor]:
        return [held for layer in self.layers for held in layer]

    def _empty(self, like: torch.Tensor) -> torch.Tensor:
        return like.new_zeros((self.size, *like.shape[1:]))


def _gap(taken: list[tuple[int, int]], capacity: int) -> int:
    """Return the first row from which so many rows belong to nobody."""
    start = 0
    for first, stop in sorted(taken):
        if first - start >= capacity:
            break
        start = stop
    return start
