"""Two coordinators on one session, at random and at once, with lost replies, late repeats and an older Redis."""

import asyncio
import copy
import itertools
import random

import pytest

from coordinator.session import FinishReason
from specdec.errors import DataLost, SessionBusy, StaleFence
from specdec.prefix import tokens_of
from tests.stored_sessions import A, expire_lease, grow, key, new_session, open_store

STEPS = 60
KEYS = [key(part) for part in ("meta", "tokens", "sources")]


class Coordinator:
    """Does random things to the session; every token it makes is new."""

    def __init__(self, store, rng, tokens):
        self.store = store
        self.rng = rng
        self.new_tokens = tokens
        self.session = None
        self.given_up = False
        self.past = []  # copies of sessions as they were committed
        self.acknowledged = []  # what the store said it has
        self.refusals = {}  # kind of error: number of times

    async def step(self):
        """Make one call and cut one in six off, as a lost reply or a dead coordinator would."""
        task = asyncio.create_task(self.act())
        if self.rng.random() < 1 / 6:
            for _ in range(self.rng.randrange(12)):
                await asyncio.sleep(0)
            task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            self.session = None
        except (StaleFence, DataLost, SessionBusy) as error:
            self.refusals[type(error)] = self.refusals.get(type(error), 0) + 1
            if not isinstance(error, SessionBusy):
                self.session = None

    async def act(self):
        if self.past and self.rng.random() < 0.2:
            await self.store.commit(copy.deepcopy(self.rng.choice(self.past)))
        elif self.session is None or self.given_up:
            claim = self.rng.choice([self.store.take, self.store.resume])
            self.session = await claim("s1", "ann", self.rng.randbytes(16).hex())
            self.given_up = False
        elif self.session.finish_reason:
            await self.store.begin_answer(self.session, self.fresh())
            self.acknowledged = list(self.session.tokens)
        else:
            await self.go_on()

    async def go_on(self):
        call = self.rng.choice(["commit", "commit", "commit", "finish", "interrupt", "renew"])
        if call in ("commit", "finish"):
            grow(self.session, *self.fresh())
        if call == "finish":
            self.session.finish_reason = FinishReason.STOP
        self.given_up = call in ("finish", "interrupt")
        self.past.append(copy.deepcopy(self.session))
        await {"interrupt": self.store.interrupt, "renew": self.store.renew}.get(call, self.store.commit)(self.session)
        if call != "interrupt":  # which does not say whether it was superseded
            self.acknowledged = list(self.session.tokens)

    def fresh(self):
        return list(itertools.islice(self.new_tokens, self.rng.randrange(1, 4)))


def at_once(raw_redis, *commands):
    """Run commands with nothing between them: what a call that was cut off has sent may run whenever it likes."""
    with raw_redis.pipeline(transaction=True) as pipeline:
        for name, *arguments in commands:
            getattr(pipeline, name)(*arguments)
        return pipeline.execute()


def stored(raw_redis):
    fields, tokens, sources = at_once(raw_redis, ("hgetall", KEYS[0]), ("get", KEYS[1]), ("get", KEYS[2]))
    return tokens_of(tokens), {name.decode(): value.decode() for name, value in fields.items()}, len(sources)


def check(before, after, coordinators):
    (old_tokens, old_meta, _), (tokens, meta, sources) = before, after
    assert tokens[: len(old_tokens)] == old_tokens, "a committed token was removed or replaced"
    assert len(set(tokens)) == len(tokens), "a token was committed twice"
    assert len(tokens) == sources == int(meta["length"])
    assert int(meta["fence_counter"]) >= int(old_meta["fence_counter"])
    if old_meta["finish"] and not meta["finish"]:
        assert int(meta["prompt_length"]) > int(old_meta["prompt_length"]), "a finish was lost"
    for coordinator in coordinators:
        acknowledged, coordinator.acknowledged = coordinator.acknowledged, []
        assert tokens[: len(acknowledged)] == acknowledged, "an acknowledged commit is not there"


@pytest.fixture
async def coordinators(redis_url, request):
    rng, tokens = random.Random(request.param), itertools.count(10)
    stores = [open_store(redis_url) for _ in range(2)]
    await stores[0].create(new_session(A))
    yield [Coordinator(store, random.Random(rng.random()), tokens) for store in stores]
    for store in stores:
        await store.close()


@pytest.mark.parametrize("coordinators", range(10), indirect=True)
async def test_interleaved_coordinators_never_contradict_each_other(coordinators, raw_redis):
    before = stored(raw_redis)
    for step in itertools.count():
        if step >= STEPS and len(before[0]) > 20:  # the order of replies is no seed's: some runs are slow to grow
            break
        await asyncio.gather(*(coordinator.step() for coordinator in coordinators))
        after = stored(raw_redis)
        check(before, after, coordinators)
        before = after
        if coordinators[0].rng.random() < 0.1:
            expire_lease(raw_redis)
    assert all(DataLost not in coordinator.refusals for coordinator in coordinators)


@pytest.mark.parametrize("coordinators", range(100, 110), indirect=True)
async def test_nor_do_they_when_redis_comes_back_older(coordinators, raw_redis):
    rng = coordinators[0].rng
    backups = []
    before = stored(raw_redis)
    for step in itertools.count():
        if step >= STEPS and len(before[0]) > 10:  # restoring backups takes growth away
            break
        backups.append(at_once(raw_redis, *(("dump", name) for name in KEYS)))
        if rng.random() < 0.1:
            older = zip(KEYS, rng.choice(backups[-6:]), strict=True)
            at_once(raw_redis, *(("restore", name, 0, value, True) for name, value in older))
            before = stored(raw_redis)
        await asyncio.gather(*(coordinator.step() for coordinator in coordinators))
        after = stored(raw_redis)
        check(before, after, coordinators)
        before = after


async def test_the_check_itself_notices_a_removed_a_repeated_and_a_missing_token(store, raw_redis):
    await store.create(new_session())
    tokens, meta, length = before = stored(raw_redis)
    with pytest.raises(AssertionError, match="removed"):
        check(before, (tokens[:-1], meta, length), [])
    with pytest.raises(AssertionError, match="twice"):
        check(before, ([*tokens, tokens[0]], meta, length), [])
    coordinator = Coordinator(store, None, None)
    coordinator.acknowledged = [*tokens, 9]
    with pytest.raises(AssertionError, match="not there"):
        check(before, before, [coordinator])
