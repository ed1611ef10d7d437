"""Sessions for tests of the store, the store on the test's Redis, and a plain client beside it."""

import pytest
import redis

from coordinator.session import Session, Speculation, TokenSource, Usage
from coordinator.session_store import SessionStore
from specdec.fence import Fence
from specdec.parameters import SamplingParams

PROMPT = [5, 4_000_000_000, 0]
A, B, C = ("a" * 32, "b" * 32, "c" * 32)


def new_session(owner=A, session_id="s1", principal="ann"):
    return Session(
        session_id=session_id,
        principal=principal,
        fence=Fence(1, owner),
        tokens=list(PROMPT),
        sources=bytearray(len(PROMPT)),
        prompt_length=len(PROMPT),
        params=SamplingParams(seed=2**64 - 1),
        speculation=Speculation(),
        model_fingerprint="f" * 8,
        usage=Usage(prompt_tokens=len(PROMPT)),
    )


def grow(session, *tokens, source=TokenSource.ACCEPTED):
    session.tokens.extend(tokens)
    session.sources.extend([source] * len(tokens))
    session.usage.completion_tokens += len(tokens)


def key(part, session_id="s1"):
    return f"specdec:{{{session_id}}}:{part}"


def expire_lease(raw_redis):
    """Set the lease's end to long ago, as if its time had passed."""
    raw_redis.hset(key("meta"), "lease_until", 1)


def open_store(redis_url):
    return SessionStore(redis_url, ttl_seconds=600, lease_seconds=30)


@pytest.fixture
async def store(redis_url):
    opened = open_store(redis_url)
    yield opened
    await opened.close()


@pytest.fixture
def raw_redis(redis_url):
    with redis.Redis.from_url(redis_url) as client:
        yield client
