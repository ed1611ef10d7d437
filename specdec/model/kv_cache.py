"""Caches of one session each: they grow in steps and are cut by setting a length."""

import torch

STEP = 256  # tokens; doubling would leave up to half of a long session's memory unused


class SteppedCache:
    """Length and capacity of a cache, whatever it holds.

    Attributes:
        length: tokens of the sequence.
        capacity: tokens that room is allocated for, a multiple of STEP.
        branches: parents of the entries behind the sequence, see ``KVCache``.
    """

    def __init__(self) -> None:
        """Start empty, with nothing allocated."""
        self.length = 0
        self.capacity = 0
        self.branches: list[int] = []

    def cut(self, length: int) -> None:
        """Forget everything from length on and all branches, in O(1).

        Raises:
            ValueError: length is not between 0 and the present one.
        """
        if not 0 <= length <= self.length:
            raise ValueError(f"a cache of {self.length} tokens cannot be cut to {length}")
        self.length = length
        self.branches = []

    def adopt(self, index: int) -> None:
        """Make the path that ends at an entry the sequence, and forget all other branches."""
        path: list[int] = []
        while index >= self.length:
            path.append(index)
            index = self.branches[index - self.length]
        self.move(path[::-1], index + 1)
        self.length = index + 1 + len(path)
        self.branches = []

    def move(self, entries: list[int], start: int) -> None:
        """Copy what the cache holds at ``entries``, in ascending order, to ``start`` and the places that follow."""
        raise NotImplementedError

    def capacity_for(self, length: int) -> int:
        """Return the capacity that holding length tokens needs, never below the present one."""
        return max(self.capacity, -(-length // STEP) * STEP)

    def reserve(self, length: int) -> None:
        """Make length tokens fit from the next append on."""
        self.capacity = self.capacity_for(length)


class TensorCache(SteppedCache):
    """Keys and values of one session: a pair of [key-value heads, capacity, head size] tensors a layer."""

    def __init__(self) -> None:
        """Start empty, with nothing allocated."""
        super().__init__()
        self._layers: list[tuple[torch.Tensor, torch.Tensor]] = []

    @property
    def layer_count(self) -> int:
        """Number of layers that have appended something."""
        return len(self._layers)

    def append(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Write a layer's keys and values behind all entries; they are counted when the pass ends, not here.

        Args:
            layer: index of the layer; layers come in order.
            keys: [key-value heads, n, head size].
            values: [key-value heads, n, value size].

        Returns:
            Views of the layer's keys and values, [key-value heads, entries, size] each, the new ones the last.
        """
        if layer == len(self._layers):
            self._layers.append((self._grown(keys[:, :0]), self._grown(values[:, :0])))
        held_keys, held_values = self._layers[layer]
        if held_keys.shape[1] < self.capacity:
            held_keys, held_values = self._layers[layer] = (self._grown(held_keys), self._grown(held_values))
        start = self.length + len(self.branches)
        stop = start + keys.shape[1]
        held_keys[:, start:stop] = keys
        held_values[:, start:stop] = values
        return held_keys[:, :stop], held_values[:, :stop]

    @torch.inference_mode()
    def move(self, entries: list[int], start: int) -> None:
        """Copy the keys and values of some entries to ``start`` and the places that follow."""
        for held in (tensor for layer in self._layers for tensor in layer):
            held[:, start : start + len(entries)] = held[:, entries]

    def _grown(self, held: torch.Tensor) -> torch.Tensor:
        """Return a tensor of the present capacity that begins with the held tokens."""
        heads, room, size = held.shape
        kept = min(room, self.length + len(self.branches))
        grown = held.new_empty((heads, self.capacity, size))
        grown[:, :kept] = held[:, :kept]
        return grown
