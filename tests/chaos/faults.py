"""Brings faults upon a world, each while a call of its phase is under way, and makes the world whole again."""

import asyncio
import time
from contextlib import suppress
from signal import Signals

from tests.chaos.clients import Gate
from tests.chaos.plan import Fault, Kind, Phase
from tests.chaos.underway import GONE, Act, Spot, Underway
from tests.chaos.world import LEASE_SECONDS, World

# For a call of the phase to come by, and for what is done with it.
AMBUSH_SECONDS = 60.0
IDLE_SECONDS = 60.0
POLL_SECONDS = 0.01
# For an answer that shall be lost: it may be that none comes.
ANSWER_SECONDS = 1.0
# As much as appendfsync everysec may lose.
OLDER_SECONDS = 1.0
LOSSES = (Kind.FORGET, Kind.OLDER)
PAST_LEASE_SECONDS = LEASE_SECONDS + 0.5


class Faults:
    """Does faults, one after the other.

    Attributes:
        done: so far.
    """

    def __init__(self, world: World, gate: Gate) -> None:
        """Do nothing yet."""
        self.done: list[Fault] = []
        self._world = world
        self._gate = gate
        self._rolling_since: float | None = None

    async def do(self, fault: Fault) -> None:
        """Do one fault; everything runs again when this returns.

        Raises:
            RuntimeError: its moment did not come, or a process ended that nobody has ended.
        """
        for service in self._world.services.values():
            service.check()
        if fault.kind is Kind.RESTART:
            await self._restart(fault.victim)
        else:
            self.end_rolling()
            await self._at(fault, _ACTS[fault.kind](self._world, fault))
            if fault.kind in (Kind.KILL, *LOSSES):
                await self._world.end(fault.victim, Signals.SIGKILL)
                await self._revive(fault)
        self.done.append(fault)

    def end_rolling(self) -> None:
        """Note that a rolling restart is over."""
        if self._rolling_since is not None:
            self._world.history.rolling.append((self._rolling_since, time.monotonic()))
            self._rolling_since = None

    async def _at(self, fault: Fault, act: Act) -> None:
        if fault.phase is Phase.IDLE:
            await self.idle()
            try:
                await act(_Nothing())
            finally:
                self._gate.open.set()
            return

        def where(spot: Spot) -> bool:
            repeats_claim = fault.kind is Kind.REPEAT and spot.resumes
            return spot.phase is fault.phase and spot.concerns(fault.victim) and not repeats_claim

        try:
            await self._world.watch.ambush(where, act, AMBUSH_SECONDS)
        except TimeoutError as error:
            raise RuntimeError(f"the moment of {fault} did not come, after {self.done}") from error

    async def idle(self) -> None:
        """Close the gate and wait until no request is under way."""
        self._gate.close()
        async with asyncio.timeout(IDLE_SECONDS):
            while self._gate.under_way:  # noqa: ASYNC110  # threads change it
                await asyncio.sleep(POLL_SECONDS)

    async def _revive(self, fault: Fault) -> None:
        if fault.kind in LOSSES:
            self._world.history.losses.append(time.monotonic())
        if fault.kind is Kind.FORGET:
            await self._world.start_redis_empty()
        elif fault.kind is Kind.OLDER:
            await self._world.start_redis_older()
        else:
            await self._world.start(fault.victim)

    async def _restart(self, victim: str) -> None:
        """End in order under load, and start again."""
        self._rolling_since = self._rolling_since or time.monotonic()
        await self._world.watch.ambush(lambda spot: spot.phase is Phase.STREAMING, _deliver, AMBUSH_SECONDS)
        status = await self._world.end(victim, Signals.SIGTERM)
        if status != 0:
            self._world.history.seen_wrong.append(f"{victim} ended with status {status} when it was asked to")
        await self._world.start(victim)


class _Nothing:
    """Stands for the call of a moment when none is under way."""

    def __init__(self) -> None:
        self.answers = asyncio.Event()
        self.answered = asyncio.Event()
        self.over = asyncio.Event()

    async def deliver(self) -> None:
        """Have nothing to deliver."""

    async def repeat(self) -> None:
        """Have nothing to repeat."""

    def cut(self) -> None:
        """Have nothing to cut."""


async def _deliver(call: Underway) -> None:
    await call.deliver()


def _kill(world: World, fault: Fault) -> Act:
    async def act(call: Underway) -> None:
        call.answers.clear()
        await call.deliver()
        await asyncio.sleep(fault.milliseconds / 1000)
        world.kill_now(fault.victim)

    return act


def _kill_later(world: World, fault: Fault) -> Act:
    """Keep the file of this moment and kill a little later: what is committed meanwhile will be lost."""

    async def act(call: Underway) -> None:
        call.answers.clear()
        await call.deliver()
        world.keep_redis_file()
        call.answers.set()
        await asyncio.sleep(OLDER_SECONDS)
        world.kill_now(fault.victim)

    return act


def _pause(world: World, fault: Fault) -> Act:
    """Stop a coordinator for longer than its lease; its clients are cut off meanwhile, and go elsewhere."""
    service, front = world.services[fault.victim], world.fronts[fault.victim].link

    async def act(call: Underway) -> None:
        call.answers.clear()
        await call.deliver()
        service.send(Signals.SIGSTOP)
        call.answers.set()
        try:
            front.refusing = True
            front.cut()
            await asyncio.sleep(PAST_LEASE_SECONDS)
        finally:
            service.send(Signals.SIGCONT)
            front.refusing = False

    return act


def _delay(world: World, fault: Fault) -> Act:
    async def act(call: Underway) -> None:
        await asyncio.sleep(fault.milliseconds / 1000)
        with suppress(*GONE):  # the caller may not have waited so long
            await call.deliver()

    return act


def _cut(world: World, fault: Fault) -> Act:
    async def act(call: Underway) -> None:
        call.cut()

    return act


def _cut_answer(world: World, fault: Fault) -> Act:
    async def act(call: Underway) -> None:
        call.answers.clear()
        await call.deliver()
        with suppress(TimeoutError):
            async with asyncio.timeout(ANSWER_SECONDS):
                await call.answered.wait()
        call.cut()

    return act


def _repeat(world: World, fault: Fault) -> Act:
    async def act(call: Underway) -> None:
        await call.deliver()
        await asyncio.sleep(fault.milliseconds / 1000)
        await call.repeat()

    return act


_ACTS = {
    Kind.KILL: _kill,
    Kind.FORGET: _kill,
    Kind.OLDER: _kill_later,
    Kind.PAUSE: _pause,
    Kind.DELAY: _delay,
    Kind.CUT: _cut,
    Kind.CUT_ANSWER: _cut_answer,
    Kind.REPEAT: _repeat,
}
