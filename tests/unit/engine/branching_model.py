"""A hash model whose caches hold branches, and works that say what may be asked after them."""

import asyncio

import torch

from specdec.model.engine import Done, Feed
from specdec.model.language_model import Branches
from specdec.model.work import Fork
from tests.unit.engine.hash_model import DraftWork, HashCache, HashModel, fence, prefix_of, row_of

GAMMA = 3


class BranchingCache(HashCache):
    """Keeps branches behind its sequence, and of each entry the tokens that lead to it."""

    def __init__(self):
        super().__init__()
        self.branches = []

    def cut(self, length):
        super().cut(length)
        self.branches = []

    def path(self, index):
        """Return the tokens that lead to an entry."""
        if index < self.length:
            return self.held[: index + 1]
        return [*self.path(self.branches[index - self.length]), self.held[index]]

    def adopt(self, index):
        self.held = self.path(index)
        self.length, self.branches = len(self.held), []


class BranchingModel(HashModel):
    """Fails as told on passes that hold branches."""

    broken = False

    def __init__(self):
        super().__init__()
        self.ahead = []  # tokens of each pass that were branches'

    def forward(self, segments):
        self.ahead.append(sum(len(segment.tokens) for segment in segments if isinstance(segment, Branches)))
        return super().forward(segments)

    def new_cache(self):
        self.caches.append(BranchingCache())
        return self.caches[-1]

    def _feed(self, segment):
        if not isinstance(segment, Branches):
            segment.cache.branches = []
            return super()._feed(segment)
        if self.broken:
            raise RuntimeError("out of memory")
        cache = segment.cache
        cache.held[cache.length + len(cache.branches) :] = segment.tokens
        cache.branches += segment.parents
        end = cache.length + len(cache.branches)
        cache.capacity = cache.capacity_for(end)
        return torch.stack([row_of(cache.path(index)) for index in range(end - segment.rows, end)])


class ForesightedWork(DraftWork):
    """Drafts greedily, begins with what is there, and expects given outcomes: an accept index and a token each."""

    def __init__(self, prefix, gamma=GAMMA, outcomes=(), weights=None):
        super().__init__(prefix, gamma)
        self.outcomes = outcomes
        self.weights = weights or [1.0] * len(outcomes)
        self.found = None

    def begin(self, committed):
        super().begin(committed)
        return self.done() if len(self.drawn) == self.gamma else Feed(list(self.drawn), 1)

    def step(self, rows):
        outcome = super().step(rows)
        return self.done() if isinstance(outcome, Done) else outcome

    def done(self):
        base_length = self.prefix.base_length
        return Done(list(self.drawn), base_length + self.gamma - 1, base_length, self)

    def forks(self):
        start = self.prefix.base_length
        return [
            Fork(AheadWork(start + index + 1, self.gamma), start + index, [token], weight)
            for (index, token), weight in zip(self.outcomes, self.weights, strict=True)
        ]

    def meet(self, work, committed, ahead):
        work.found = ahead and len(ahead.drawn)
        work.drawn = ahead.drawn[: work.gamma] if ahead else []
        return bool(work.drawn)


class AheadWork(DraftWork):
    def __init__(self, base_length, gamma):
        super().__init__(prefix_of([0] * base_length), gamma)


async def rest(engine):
    """Wait until all that can be done ahead has been done."""
    await engine.release("nobody", fence(), 0)  # comes after the last answer has been followed up
    await until(lambda: not engine._batching.ahead.pending)


async def until(condition):
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0)
