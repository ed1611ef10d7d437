"""A service process that can be asked what it holds; and one that leaks, which a soak run must notice.

Memory is the resident set: the services are forked from one process, and what they share (proportional and unique set
sizes) shrinks by itself as they write to their pages. Objects are what the garbage collector tracks beyond what was
imported, after it has collected: what is counted is still referred to.
"""

import gc
import time
from collections import Counter
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Thread

import psutil

from specdec.model import engine
from specdec.model.fences import Fences
from tests.chaos.levels import gauges
from tests.chaos.processes import Run, ServiceProcess, run_service

MEBIBYTE = 2**20
LEAK_SECONDS = 0.05
ANSWER_SECONDS = 30.0
TASK = "_asyncio.Task"
# A model service remembers fences of more sessions than any run has; here of fewer, which it has heard of when warm.
FENCES_KEPT = 128


class ObservedProcess(ServiceProcess):
    """A service in its one life."""

    def __init__(self, folder: Path, name: str, flags: dict[str, object], *, leaks: bool = False) -> None:
        """Start nothing yet."""
        self._ours, theirs = Pipe()
        run: Run = partial(_run_leaking if leaks else _run_observed, theirs)
        super().__init__(folder, name, flags, run)

    def held(self) -> dict[str, float]:
        """Return what it holds, by quantity."""
        process = psutil.Process(self.pid)
        types = self.types()
        held = {
            "memory": process.memory_info().rss / MEBIBYTE,
            "objects": types.total(),
            "tasks": types[TASK],
            "descriptors": process.num_fds(),
            "threads": process.num_threads(),
        }
        sessions = gauges(self.metrics_port).get("specdec_sessions")
        return held if sessions is None else held | {"caches": sessions}

    def types(self) -> Counter[str]:
        """Return how many objects of each type it holds.

        Raises:
            RuntimeError: it does not answer.
        """
        self._ours.send(None)
        if not self._ours.poll(ANSWER_SECONDS):
            raise RuntimeError(f"{self.name} does not say what it holds")
        types: Counter[str] = self._ours.recv()
        return types


def _run_observed(asked: Connection, module: str, arguments: list[str], log: Path) -> None:
    engine.Fences = partial(Fences, FENCES_KEPT)
    gc.freeze()
    Thread(target=_answer, args=(asked,), daemon=True).start()
    run_service(module, arguments, log)


def _run_leaking(asked: Connection, module: str, arguments: list[str], log: Path) -> None:
    Thread(target=_leak, daemon=True).start()
    _run_observed(asked, module, arguments, log)


def _answer(asked: Connection) -> None:
    while True:
        asked.recv()
        gc.collect()
        asked.send(Counter(f"{type(each).__module__}.{type(each).__qualname__}" for each in gc.get_objects()))


def _leak() -> None:
    kept = []
    while True:
        kept.append([bytearray(MEBIBYTE // 8)])
        kept[-1][0][::4096] = b"x" * (MEBIBYTE // 8 // 4096)  # touched, so that it is resident
        time.sleep(LEAK_SECONDS)
