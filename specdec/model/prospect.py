"""How a session that rests may go on: likely next calls, each with its own branch of the cache."""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

from specdec.model.language_model import Branches, KVCache
from specdec.model.work import Feed, Fork, Outlook, Work


@dataclass(eq=False, slots=True)
class Branch:
    """A call that has not come, and the tokens fed for it.

    Attributes:
        work: what would be asked.
        start: how many leading tokens of the session's sequence it stands on.
        tokens: what follows those: the rest that it stands on, and what it wants fed.
        base_length: number of tokens it stands on, in all.
        weight: how likely it is.
        entries: indices in the cache of those of its tokens that have been fed.
        done: whether it wants nothing more.
    """

    work: Work
    start: int
    tokens: list[int]
    base_length: int
    weight: float
    entries: list[int] = field(default_factory=list)
    done: bool = False

    @property
    def pending(self) -> int:
        """Number of tokens still to feed."""
        return len(self.tokens) - len(self.entries)

    @property
    def tip(self) -> int:
        """Index in the cache of the entry that its next token follows."""
        return self.entries[-1] if self.entries else self.start - 1

    def stands_on(self, sequence: Sequence[int], committed: Sequence[int]) -> bool:
        """Whether it is about a call with these committed tokens, given the session's sequence."""
        return (
            self.base_length == len(committed)
            and self.tokens[: self.base_length - self.start] == committed[self.start :]
            and sequence[: self.start] == committed[: self.start]
        )


@dataclass(eq=False, slots=True)
class Prospect:
    """What is expected of one session.

    Attributes:
        outlook: the service's.
        branches: likely next calls, once there has been time for them.
        unfolded: whether there has.
    """

    outlook: Outlook
    branches: list[Branch] = field(default_factory=list)
    unfolded: bool = False

    @property
    def unfinished(self) -> bool:
        """Whether idle time can be put to use."""
        return not self.unfolded or any(not branch.done for branch in self.branches)

    def unfold(self, sequence: Sequence[int], most: int) -> None:
        """Begin the likely calls, and keep ``most`` of them at most."""
        self._keep([_begin(fork, sequence) for fork in self.outlook.forks()], most)
        self.unfolded = True

    def grow(self, parent: Branch, outlook: Outlook, sequence: Sequence[int], most: int) -> None:
        """Let a branch make way for those that go on from it, and keep ``most`` of all at most."""
        trunk = sequence[: parent.start]
        self._keep([_begin(fork, trunk, parent.tokens, parent.entries) for fork in outlook.forks()], most, parent)

    def drop(self, branch: Branch) -> None:
        """Expect a call no longer."""
        self.branches = [other for other in self.branches if other is not branch]

    def foreseen(self, sequence: Sequence[int], committed: Sequence[int]) -> Branch | None:
        """Return the branch about a call with these committed tokens, if there is one."""
        return next((branch for branch in self.branches if branch.stands_on(sequence, committed)), None)

    def _keep(self, more: Sequence[Branch], most: int, parent: Branch | None = None) -> None:
        others = [other for other in self.branches if other is not parent]
        self.branches = heapq.nlargest(most, [*others, *more], key=lambda branch: branch.weight)


def _begin(fork: Fork, trunk: Sequence[int], behind: Sequence[int] = (), entries: Sequence[int] = ()) -> Branch:
    """Begin a call that stands on a part of ``trunk``, on the first tokens ``behind`` it, and on its own ones."""
    start = min(fork.start, len(trunk))
    shared = fork.start - start
    committed = [*trunk[:start], *behind[:shared], *fork.tokens]
    first = fork.work.begin(committed)
    if not isinstance(first, Feed):
        raise TypeError(f"a call that needs nothing fed is not worth foreseeing: {first}")
    tokens = [*committed[start:], *first.tokens]
    return Branch(fork.work, start, tokens, len(committed), fork.weight, list(entries[:shared]))


def next_tokens(cache: KVCache, branches: Sequence[Branch]) -> Branches:
    """Take the next token of each branch into a pass, which gives a row for each."""
    parents = [branch.tip for branch in branches]
    tokens = [branch.tokens[len(branch.entries)] for branch in branches]
    held = cache.length + len(cache.branches)
    for index, branch in enumerate(branches):
        branch.entries.append(held + index)
    return Branches(cache, tokens, len(tokens), parents)
