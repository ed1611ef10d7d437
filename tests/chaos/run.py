"""One run: a whole system under load, a plan of faults, and what was found."""

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from grpc.experimental import insecure_channel_credentials

from client.connection import Coordinators
from coordinator.session_store import MAX_CONNECTIONS
from tests.chaos.checker import violations
from tests.chaos.clients import Client, Gate, undisturbed
from tests.chaos.faults import Faults
from tests.chaos.history import History, Stored
from tests.chaos.levels import Level, leases, level, settled
from tests.chaos.plan import COORDINATORS, Fault
from tests.chaos.world import World, world

CLIENTS = 6
WARM_ANSWERS = 12
END_SECONDS = 90.0
POLL_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class Result:
    """What a run found.

    Attributes:
        history: everything seen.
        done: the faults.
        violations: what does not hold, one line each.
        levels: of each service: before and after.
        seconds: from the first fault to the last.
    """

    history: History
    done: Sequence[Fault]
    violations: Sequence[str]
    levels: dict[str, tuple[Level, Level]]
    seconds: float


async def run(plan: Sequence[Fault], seed: int, folder: Path, tell: Callable[[int], None] = lambda _: None) -> Result:
    """Do a plan; the services log into a folder, and ``tell`` hears the number of each fault."""
    async with world(folder) as made:
        history, gate = made.history, Gate()
        addresses = [f"127.0.0.1:{made.fronts[name].link.port}" for name in COORDINATORS]
        history.expected = await asyncio.to_thread(undisturbed, addresses)
        clients = [Client(addresses, history, gate, seed + each) for each in range(CLIENTS)]
        threads = [threading.Thread(target=client.run) for client in clients]
        faults = Faults(made, gate)
        try:
            for thread in threads:
                thread.start()
            before = await _warm(made, gate, faults)
            started = time.monotonic()
            for number, fault in enumerate(plan, 1):
                tell(number)
                await faults.do(fault)
            faults.end_rolling()
            seconds = time.monotonic() - started
            await _answers(made, WARM_ANSWERS)
            await faults.idle()
        finally:
            gate.ended = True
            gate.open.set()
            await asyncio.to_thread(_join, threads)
        found = await leases(made)
        await asyncio.to_thread(_look_and_delete, addresses, history)
        allowed = {name: replace(each, to_redis=MAX_CONNECTIONS) for name, each in before.items()}
        found += await settled(made, allowed)
        after = {name: level(made, name) for name in made.services}
        levels = {name: (before[name], after[name]) for name in made.services}
        return Result(history, faults.done, [*violations(history), *found], levels, seconds)


async def _warm(made: World, gate: Gate, faults: Faults) -> dict[str, Level]:
    """Let some answers be made and return what all hold after them, but for caches: those are let go in the end."""
    gate.open.set()
    await _answers(made, WARM_ANSWERS)
    await faults.idle()
    levels = {name: level(made, name) for name in made.services}
    gate.open.set()
    return {name: replace(each, held={}) for name, each in levels.items()}


async def _answers(made: World, count: int) -> None:
    """Wait until so many more requests have ended."""
    wanted = len(made.history.requests) + count
    async with asyncio.timeout(END_SECONDS):
        while len(made.history.requests) < wanted:  # noqa: ASYNC110  # threads add them
            await asyncio.sleep(POLL_SECONDS)


def _join(threads: Sequence[threading.Thread]) -> None:
    for thread in threads:
        thread.join(END_SECONDS)


def _look_and_delete(addresses: Sequence[str], history: History) -> None:
    """Take down what every session holds, then end it."""
    sessions = {request.session_id for request in history.requests}
    with Coordinators(list(addresses), insecure_channel_credentials(), (), lambda _, pause: None) as coordinators:
        for session_id in sorted(sessions):
            found = coordinators.session(session_id)
            if found is not None:
                history.stored[session_id] = Stored(tuple(found.token_ids), found.prompt_length, found.text)
                coordinators.delete(session_id)
