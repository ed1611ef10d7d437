"""The cache of one session, whatever it holds: it grows in steps and is cut by setting a length."""

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

    @property
    def entries(self) -> int:
        """Number of entries: the sequence and the branches behind it."""
        return self.length + len(self.branches)

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
        """Make length tokens fit from now on."""
        self.capacity = self.capacity_for(length)
