"""The services as processes that start in a moment: forked from one that has imported everything, torch included.

Each runs its own ``main``, has a log file, and ends when this process does, however that goes.
"""

import importlib
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing import connection
from pathlib import Path

from deploy.process import serving_event

MODULES = {"coordinator": "coordinator", "draft": "draft_service", "target": "target_service"}
START_SECONDS = 60.0
END_SECONDS = 30.0
POLL_SECONDS = 0.02

Run = Callable[[str, list[str], Path], None]

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload([f"{module}.__main__" for module in MODULES.values()])


def run_service(module: str, arguments: list[str], log: Path) -> None:
    """Become a service."""
    os.setsid()
    with log.open("ab") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    sys.argv = [module, *arguments]
    importlib.import_module(f"{module}.__main__").main()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os.kill(os.getpid(), signal.SIGKILL)


class ServiceProcess:
    """One service, over all its lives.

    Attributes:
        name: coordinator, draft or target, with a number.
        port: of the running life.
        metrics_port: of the running life.
    """

    def __init__(self, folder: Path, name: str, flags: dict[str, object], run: Run = run_service) -> None:
        """Start nothing yet; ``flags`` are those of the service, but host and ports; ``run`` is what a life does."""
        self.name = name
        self.port = 0
        self.metrics_port = 0
        self._log = folder / f"{name}.log"
        self._module = MODULES[name.partition("-")[0]]
        self._flags = flags
        self._run = run
        self._process: multiprocessing.process.BaseProcess | None = None
        self._killed = False

    @property
    def pid(self) -> int:
        """Of the running life."""
        assert self._process is not None
        assert self._process.pid is not None
        return self._process.pid

    def start(self) -> None:
        """Start it on free ports and wait until it serves.

        Raises:
            RuntimeError: it ended or was too slow.
        """
        flags = {"host": "127.0.0.1", "port": 0, "metrics-port": -1} | self._flags
        arguments = [text for flag, value in flags.items() for text in (f"--{flag}", str(value))]
        start = self._log.stat().st_size if self._log.exists() else 0
        self._process = _FORKS.Process(target=self._run, args=(self._module, arguments, self._log))
        self._process.start()
        self._killed = False
        deadline = time.monotonic() + START_SECONDS
        while (event := self._serving(start)) is None:
            if not self._process.is_alive() or time.monotonic() > deadline:
                raise RuntimeError(f"{self.name} does not serve; see {self._log}")
            time.sleep(POLL_SECONDS)
        self.port, self.metrics_port = int(event["port"]), int(event["metrics_port"])

    def send(self, number: signal.Signals) -> None:
        """Send it a signal; SIGKILL once."""
        if not self._killed:
            self._killed = number is signal.SIGKILL
            os.kill(self.pid, number)

    def check(self) -> None:
        """Check that it runs.

        Raises:
            RuntimeError: it has ended by itself.
        """
        if self._process is None or not self._process.is_alive():
            raise RuntimeError(f"{self.name} has ended by itself; see {self._log}")

    def end(self, number: signal.Signals) -> int:
        """End it by a signal and return its exit status, negative when it was killed."""
        assert self._process is not None
        if self._process.is_alive():
            self.send(number)
        self._process.join(END_SECONDS)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        status = self._process.exitcode
        self._process.close()
        self._process = None
        return status if status is not None else -1

    def kill_if_running(self) -> None:
        """End it at once if there is one."""
        if self._process is not None:
            self.end(signal.SIGKILL)

    def _serving(self, start: int) -> dict[str, object] | None:
        if not self._log.exists():
            return None
        with self._log.open("rb") as log:
            log.seek(start)
            return serving_event(log.read().decode(errors="replace"))
