"""Inputs are encoded beside the loop: small ones as they come, large ones one at a time, for whoever still waits."""

import asyncio
import gc
import threading
import weakref
from contextlib import asynccontextmanager

import pytest

from coordinator.encoding import LARGE_BYTES, MAX_WAITING, Encoding
from coordinator.requests import Served
from coordinator.tokenizer import ByteTokenizer
from specdec.errors import InvalidParameter, QueueFull
from specdec.v1 import common_pb2, generation_pb2

LARGE = "a" * LARGE_BYTES


class GatedTokenizer(ByteTokenizer):
    """Encodes large texts when told to."""

    def __init__(self):
        self.held, self.gate = threading.Event(), threading.Event()
        self.begun = []

    def encode(self, text, *, begin):
        if len(text) >= LARGE_BYTES:
            self.begun.append(text[0])
            self.held.set()
            assert self.gate.wait(60)
        return super().encode(text, begin=begin)


class World:
    """An encoding and what it works with."""

    def __init__(self):
        self.tokenizer = GatedTokenizer()
        self._served = Served(common_pb2.ModelInfo(vocabulary_size=300, context_length=2**20), self.tokenizer, 16, 256)
        self._encoding = Encoding()

    async def encoded(self, prompt):
        return await self._encoding.encode(generation_pb2.GenerateRequest(prompt=prompt), self._served, [])

    def encode(self, prompt):
        return asyncio.create_task(self.encoded(prompt))


@asynccontextmanager
async def encoding_one():
    """Give a world in which a large input is being encoded, and its task."""
    world = World()
    first = world.encode(LARGE)
    try:
        assert await asyncio.to_thread(world.tokenizer.held.wait, 60)
        yield world, first
    finally:
        world.tokenizer.gate.set()


async def turns():
    for _ in range(5):
        await asyncio.sleep(0)


async def test_small_inputs_do_not_wait_for_a_large_one():
    async with encoding_one() as (world, first):
        assert await world.encode("ab") == [97, 98]
        assert not first.done()
    assert await first == [97] * LARGE_BYTES


async def test_large_inputs_take_turns_and_a_caller_that_left_keeps_its_turn_until_its_input_is_encoded():
    async with encoding_one() as (world, first):
        second, third = world.encode("b" + LARGE), world.encode("c" + LARGE)
        await turns()
        for leaving in (first, second):
            leaving.cancel()
            with pytest.raises(asyncio.CancelledError):
                await leaving
        assert await world.encode("ab") == [97, 98]  # long enough for what could begin to have begun
        assert world.tokenizer.begun == ["a"]
        world.tokenizer.gate.set()
        assert (await third)[0] == ord("c")
        assert world.tokenizer.begun == ["a", "c"]


async def test_a_large_request_that_is_refused_is_gone_with_its_error():
    world = World()
    world.tokenizer.gate.set()
    gc.disable()
    try:
        try:
            await world.encoded("a" * 2**20)
        except InvalidParameter as refusal:
            error = weakref.ref(refusal)
        async with asyncio.timeout(60):
            while error() is not None:  # noqa: ASYNC110  # the thread may be about to let go of it
                await asyncio.sleep(0)
    finally:
        gc.enable()


async def test_too_many_large_inputs_are_refused():
    async with encoding_one() as (world, _):
        waiting = [world.encode(LARGE) for _ in range(MAX_WAITING)]
        await turns()
        with pytest.raises(QueueFull) as caught:
            await world.encode(LARGE)
        assert caught.value.retry_seconds > 0
        waiting.pop().cancel()
        await turns()
        waiting.append(world.encode(LARGE))
        world.tokenizer.gate.set()
        assert {len(tokens) for tokens in await asyncio.gather(*waiting)} == {LARGE_BYTES}
