"""A caller that leaves while a session is being claimed does not keep the claim."""

import asyncio

import pytest

from coordinator.leaving import Leaving
from coordinator.session import Session, Speculation
from specdec.errors import PeerUnavailable
from specdec.fence import Fence
from specdec.parameters import SamplingParams


class SlowStore:
    """Claims when told to; remembers what was given up."""

    def __init__(self):
        self.asked, self.answer = asyncio.Event(), asyncio.Event()
        self.failure = None
        self.given_up = []

    async def claim(self):
        self.asked.set()
        await self.answer.wait()
        if self.failure:
            raise self.failure
        return Session("s", "", Fence(2, "0" * 32), [1], bytearray(1), 1, SamplingParams(), Speculation(), "m")

    async def give_up(self, session):
        self.given_up.append(session.fence)


async def leave_while_claiming(store):
    """Leave, which does not wait for the store; the claim comes about afterwards."""
    claiming = asyncio.create_task(Leaving(60).claim(store.claim(), store.give_up))
    await store.asked.wait()
    claiming.cancel()
    with pytest.raises(asyncio.CancelledError):
        await claiming
    assert store.given_up == []
    store.answer.set()
    for _ in range(20):
        await asyncio.sleep(0)


async def test_a_claim_nobody_waits_for_is_given_up():
    store = SlowStore()
    await leave_while_claiming(store)
    assert store.given_up == [Fence(2, "0" * 32)]


async def test_a_claim_that_failed_has_nothing_to_give_up():
    store = SlowStore()
    store.failure = PeerUnavailable("away")
    await leave_while_claiming(store)
    assert store.given_up == []
