"""A model whose logits are a hash of exactly what its cache holds, and works that use it as the services do."""

import hashlib
import threading

import torch

from specdec.fence import Fence
from specdec.model.engine import Done, Engine, EngineLimits, Feed
from specdec.prefix import CommittedPrefix, PrefixDigest, token_bytes

VOCABULARY = 16
STEP = 8


def row_of(tokens):
    return torch.tensor(
        list(hashlib.blake2b(token_bytes(tokens), digest_size=VOCABULARY).digest()), dtype=torch.float32
    )


class HashCache:
    """Keeps what lies past its length, as a real cache does: reading it by mistake changes the hash."""

    def __init__(self):
        self.length = 0
        self.capacity = 0
        self.held = []

    def cut(self, length):
        assert 0 <= length <= self.length
        self.length = length

    def capacity_for(self, length):
        return max(self.capacity, -(-length // STEP) * STEP)


class HashModel:
    name = "hash"
    vocabulary_size = VOCABULARY
    device = torch.device("cpu")

    def __init__(self, context_length=4096):
        self.context_length = context_length
        self.passes = []
        self.caches = []
        self.before_pass = lambda: None
        self.after_pass = lambda: None

    def new_cache(self):
        self.caches.append(HashCache())
        return self.caches[-1]

    def forward(self, segments):
        self.before_pass()
        assert segments
        assert len({id(segment.cache) for segment in segments}) == len(segments)
        self.passes.append([(len(segment.tokens), segment.rows) for segment in segments])
        logits = [self._feed(segment) for segment in segments]
        self.after_pass()
        return logits

    def _feed(self, segment):
        cache, count = segment.cache, len(segment.tokens)
        assert count >= 1
        assert 0 <= segment.rows <= count
        assert cache.length + count <= self.context_length
        cache.held[cache.length : cache.length + count] = segment.tokens
        cache.length += count
        cache.capacity = cache.capacity_for(cache.length)
        rows = [row_of(cache.held[:end]) for end in range(cache.length - segment.rows + 1, cache.length + 1)]
        return torch.stack(rows) if rows else torch.empty(0, VOCABULARY)


class Gate:
    """Holds passes back one by one."""

    def __init__(self, model):
        self.arrived = threading.Semaphore(0)
        self.permits = threading.Semaphore(0)
        model.before_pass = self._wait

    def _wait(self):
        self.arrived.release()
        assert self.permits.acquire(timeout=30)

    def open(self, passes=10_000):
        self.permits.release(passes)


def fence(counter=1, owner="a"):
    return Fence(counter, owner * 32)


def prefix_of(committed, session_id="s", start=0, claim=None):
    digest = PrefixDigest(committed[:start]).digest()
    return CommittedPrefix(session_id, claim or fence(), start, digest, tuple(committed[start:]), 1)


class VerifyWork:
    """What the target does, greedily. Its result: accept index, next token, rows."""

    def cut_short(self):
        return None

    def __init__(self, prefix, draft_tokens=()):
        self.prefix = prefix
        self.draft_tokens = list(draft_tokens)
        self.reach = len(self.draft_tokens)

    def begin(self, committed):
        assert len(committed) == self.prefix.base_length
        return Feed(self.draft_tokens, len(self.draft_tokens) + 1)

    def step(self, rows):
        result = verdict(rows, self.draft_tokens)
        end = self.prefix.base_length + result[0]
        return Done(result, keep=end, committed=end)


class DraftWork:
    """What the draft does, greedily. Its result: draft tokens."""

    def cut_short(self):
        return None

    def __init__(self, prefix, gamma):
        self.prefix = prefix
        self.gamma = gamma
        self.drawn = []
        self.reach = gamma - 1

    def begin(self, committed):
        assert len(committed) == self.prefix.base_length
        return Feed([], 1)

    def step(self, rows):
        assert rows.shape == (1, VOCABULARY)
        self.drawn.append(int(rows[0].argmax()))
        if len(self.drawn) < self.gamma:
            return Feed([self.drawn[-1]], 1)
        return Done(self.drawn, keep=self.prefix.base_length + self.gamma - 1, committed=self.prefix.base_length)


class KnowWork:
    """What a draft does that needs no logits: it is done at once. Its result: the committed tokens."""

    def cut_short(self):
        return None

    def __init__(self, prefix, reach=0):
        self.prefix = prefix
        self.reach = reach

    def begin(self, committed):
        assert len(committed) == self.prefix.base_length
        return Done(committed, keep=10**6, committed=len(committed))


class MixedWork:
    """What a draft does that has some tokens without logits: they are fed with the next. Its result: draft tokens."""

    def cut_short(self):
        return None

    def __init__(self, prefix, early, gamma):
        self.prefix = prefix
        self.drawn = list(early)
        self.gamma = gamma
        self.reach = max(len(self.drawn), gamma)

    def begin(self, committed):
        assert len(committed) == self.prefix.base_length
        return Feed(list(self.drawn), 1)

    def step(self, rows):
        self.drawn.append(int(rows[0].argmax()))
        if len(self.drawn) < self.gamma:
            self.drawn.append(0)
            return Feed(self.drawn[-2:], 1)
        base_length = self.prefix.base_length
        return Done(self.drawn, keep=base_length + len(self.drawn) - 1, committed=base_length)


class OddWork:
    """Begins and goes on as told, by functions or by the errors they raise."""

    def cut_short(self):
        return None

    def __init__(self, prefix, begin=lambda committed: Feed([], 1), step=lambda rows: Done("odd", 10**6, 10**6)):
        self.prefix = prefix
        self.reach = 0
        self.begin = begin
        self.step = step


def raises(error):
    def function(_):
        raise error

    return function


def verdict(rows, draft_tokens):
    chosen = [int(row.argmax()) for row in rows]
    accept_index = 0
    while accept_index < len(draft_tokens) and chosen[accept_index] == draft_tokens[accept_index]:
        accept_index += 1
    return accept_index, chosen[accept_index], rows.tolist()


def fresh_verdict(committed, draft_tokens=()):
    tokens = [*committed, *draft_tokens]
    return verdict(torch.stack([row_of(tokens[:end]) for end in range(len(committed), len(tokens) + 1)]), draft_tokens)


def fresh_draft(committed, gamma):
    tokens = list(committed)
    for _ in range(gamma):
        tokens.append(int(row_of(tokens).argmax()))
    return tokens[len(committed) :]


def fresh_mixed(committed, early, gamma):
    drawn = [*early, *fresh_draft([*committed, *early], 1)]
    while len(drawn) < gamma:
        drawn.append(0)
        drawn += fresh_draft([*committed, *drawn], 1)
    return drawn


def advance(works):
    return [work.step(rows) for work, rows in works]


def limits(**changed):
    values = {"max_batch_tokens": 64, "max_sessions": 8, "cache_tokens": 4096, "max_queue": 64, "idle_seconds": 3600.0}
    return EngineLimits(**{**values, **changed})


class Running:
    """An engine in an ``async with``; checks at the end that its books are right."""

    def __init__(self, model, advance=advance, **changed):
        self.engine = Engine(model, advance, limits(**changed))

    async def __aenter__(self):
        self.engine.start()
        return self.engine

    async def __aexit__(self, *_):
        await self.engine.close()
        check_books(self.engine)


def check_books(engine):
    batching = engine._batching
    sessions = list(batching.caches._sessions.values())
    assert len(sessions) <= engine.limits.max_sessions
    assert sum(session.room for session in sessions) == batching.caches.room <= engine.limits.cache_tokens
    resting = [session for session in sessions if not session.running]
    for session in resting:
        cache, committed = session.cache, session._committed
        assert session.tokens
        assert session.tokens[: cache.length] == cache.held[: cache.length]
        assert cache.length <= len(session.tokens) <= max(cache.length, committed.length)  # fed, or known
        assert session.room == cache.capacity_for(len(session.tokens)) >= cache.capacity >= cache.length
        if committed.length <= len(session.tokens):  # else the next alignment starts it anew
            assert committed.digest() == PrefixDigest(session.tokens[: committed.length]).digest()
