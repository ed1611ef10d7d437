"""Many answers at once, for a set time: sessions that ask again and again, or requests that arrive when they will."""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc

from benchmarks.recording import CALL_SECONDS, Recorder, Recording
from specdec.v1 import generation_pb2, generation_pb2_grpc

WARM_SHARE = 0.25  # of the time, before anything counts
REFUSED_PAUSE_SECONDS = 0.2

Requests = Callable[[int], generation_pb2.GenerateRequest]
"""From a running number to a request without session_id."""


@dataclass(frozen=True, slots=True)
class Answered:
    """An answer, or what has come of it when time was up.

    Attributes:
        begun: when it was asked for, in seconds since the beginning.
        recording: its rounds, perhaps none; times since it was asked for.
        refused: the services had no room for it.
    """

    begun: float
    recording: Recording
    refused: bool = False


class Loading:
    """Asks one set of stubs, in turns, and keeps what comes.

    Attributes:
        answers: in the order in which they ended.
    """

    def __init__(self, stubs: Sequence[Any], requests: Requests) -> None:
        """Begin; the time runs from now.

        Args:
            stubs: asynchronous stubs of GenerationService.
            requests: what to ask.
        """
        self.answers: list[Answered] = []
        self._stubs = stubs
        self._requests = requests
        self._count = 0
        self._started = time.perf_counter()

    async def ask(self) -> None:
        """Follow one answer to its end, or until cancelled.

        Raises:
            grpc.aio.AioRpcError: the call failed otherwise than for want of room.
        """
        number, self._count = self._count, self._count + 1
        stub = self._stubs[number % len(self._stubs)]
        request = self._requests(number)
        begun, recorder, refused = time.perf_counter() - self._started, Recorder(), False
        try:
            async for event in stub.Generate(request, timeout=CALL_SECONDS):
                recorder.take(event)
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
                raise
            refused = True
        finally:
            self.answers.append(Answered(begun, recorder.recording(), refused))
        if refused:
            await asyncio.sleep(REFUSED_PAUSE_SECONDS)


async def closed_loop(loading: Loading, sessions: int, seconds: float) -> None:
    """Keep so many answers running, each followed by another; the sessions begin spread over the warm-up."""

    async def session(number: int) -> None:
        await asyncio.sleep(WARM_SHARE * seconds * number / sessions)
        while True:
            await loading.ask()

    await _for_seconds([session(number) for number in range(sessions)], seconds)


async def open_loop(loading: Loading, rate: float, seed: int, seconds: float) -> None:
    """Let answers begin as a Poisson process says, whatever runs already.

    Args:
        loading: asks.
        rate: answers a second.
        seed: decides when; the same one gives the same times at the same rate.
        seconds: until time is up.
    """

    async def at(moment: float) -> None:
        await asyncio.sleep(moment)
        await loading.ask()

    await _for_seconds([at(moment) for moment in arrivals(rate, seed, seconds)], seconds)


def arrivals(rate: float, seed: int, seconds: float) -> Iterator[float]:
    """Yield the moments of a Poisson process up to an end, in seconds."""
    draws, moment = random.Random(seed), 0.0
    while (moment := moment + draws.expovariate(rate)) < seconds:
        yield moment


@asynccontextmanager
async def asynchronous_stubs(addresses: Sequence[str]) -> AsyncIterator[list[Any]]:
    """Connect to coordinators."""
    channels = [grpc.aio.insecure_channel(address) for address in addresses]
    try:
        yield [generation_pb2_grpc.GenerationServiceStub(channel) for channel in channels]
    finally:
        for channel in channels:
            await channel.close()


async def _for_seconds(work: Sequence[Coroutine[Any, Any, None]], seconds: float) -> None:
    """Work side by side until the time is up; what fails earlier ends it all and is raised."""
    try:
        async with asyncio.timeout(seconds), asyncio.TaskGroup() as group:
            for one in work:
                group.create_task(one)
            await asyncio.sleep(seconds)
    except TimeoutError:
        return
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from failed
