"""One process with a log file and a pid file: started, awaited, found again by another command, ended."""

import json
import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import psutil

POLL_SECONDS = 0.05
KILL_SECONDS = 10.0
TAIL_LINES = 25
# Two readings of when the machine was booted, in whole seconds, go into the moment of a start.
STARTED_TOLERANCE_SECONDS = 2.0
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class StartFailed(Exception):
    """A process ended, or took too long, before it was ready; the message ends with the tail of its log."""


@dataclass(frozen=True, slots=True)
class PidRecord:
    """What a pid file says.

    Attributes:
        pid: process id.
        boot: names what the machine was booted to, empty where nothing does; with ``started`` it tells the process from
            a later one with the same pid.
        started: seconds after the boot. The time of day would not do: the clock may be set while the process runs.
        port: where it serves; 0 until that is known.
        metrics_port: where Prometheus finds it; 0 is nowhere.
    """

    pid: int
    boot: str
    started: float
    port: int = 0
    metrics_port: int = 0


def process_record(process: psutil.Process) -> PidRecord:
    """Return what a pid file says of a process whose ports are not known."""
    boot = BOOT_ID.read_text().strip() if BOOT_ID.exists() else ""
    return PidRecord(process.pid, boot, _started(process.pid))


def _started(pid: int) -> float:
    """Return when a process was started; both readings are times of day, by a clock that may be set between them."""
    while True:
        booted: float = psutil.boot_time()
        started: float = psutil.Process(pid).create_time()
        if psutil.boot_time() == booted:
            return started - booted


class LoggedProcess:
    """A process that writes to FOLDER/NAME.log and is remembered in FOLDER/NAME.pid.

    One that an earlier command left running is found by its pid file.
    """

    def __init__(self, folder: Path, name: str) -> None:
        """Start nothing yet."""
        self.name = name
        self.log = folder / f"{name}.log"
        self._pid_file = folder / f"{name}.pid"
        self._child: subprocess.Popen[bytes] | None = None
        self._log_start = 0

    def start(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Run a command in a session of its own, so that Ctrl-C reaches only whoever started it.

        Args:
            command: program and arguments.
            environment: set on top of this process's environment.
        """
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self._log_start = log.tell()
            self._child = subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=os.environ | dict(environment),
                start_new_session=True,
            )
        self._write(process_record(psutil.Process(self._child.pid)))

    def record(self) -> PidRecord | None:
        """Return what the pid file says if that very process still runs."""
        try:
            record = PidRecord(**json.loads(self._pid_file.read_text()))
        except FileNotFoundError:
            return None
        return record if self._find(record) else None

    def wait_until(self, ready: Callable[[], bool], seconds: float, what: str) -> None:
        """Ask again and again until the answer is yes, as long as the process runs.

        Args:
            ready: asked every POLL_SECONDS.
            seconds: to wait at most.
            what: the process is then, for the error.

        Raises:
            StartFailed: the process ended or was too slow.
        """
        deadline = time.monotonic() + seconds
        while not ready():
            if self.record() is None:
                raise StartFailed(self._failure(f"ended before it was {what}"))
            if time.monotonic() > deadline:
                raise StartFailed(self._failure(f"was not {what} within {seconds:g} seconds"))
            time.sleep(POLL_SECONDS)

    def wait_listening(self, seconds: float) -> PidRecord:
        """Wait for the log line that says where the process serves, and remember the ports.

        Raises:
            StartFailed: the process ended or was too slow.
        """
        self.wait_until(lambda: self._serving_event() is not None, seconds, "listening")
        event = self._serving_event() or {}
        return self.remember_ports(int(event["port"]), int(event.get("metrics_port") or 0))

    def remember_ports(self, port: int, metrics_port: int) -> PidRecord:
        """Add the ports of the running process to its pid file.

        Raises:
            StartFailed: the process ended meanwhile.
        """
        record = self.record()
        if record is None:
            raise StartFailed(self._failure("ended as soon as it was listening"))
        record = replace(record, port=port, metrics_port=metrics_port)
        self._write(record)
        return record

    def end(self, grace_seconds: float) -> bool:
        """Ask the process to end, kill it when it has not within the grace, and forget it.

        Returns:
            Whether there was one.
        """
        process = self._running()
        if process:
            with suppress(psutil.NoSuchProcess):
                process.terminate()
                with suppress(psutil.TimeoutExpired):
                    process.wait(grace_seconds)
        self.kill()
        return process is not None

    def kill(self) -> None:
        """End the process at once, as a crash would, and forget it."""
        process = self._running()
        if process:
            with suppress(psutil.NoSuchProcess):
                process.kill()
                process.wait(KILL_SECONDS)
        if self._child:
            self._child.kill()  # it has ended, unless its start was interrupted before there was a pid file
            self._child.wait(KILL_SECONDS)
            self._child = None
        self._pid_file.unlink(missing_ok=True)

    def tail(self) -> str:
        """Return the last lines of the log."""
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        return "\n".join(lines[-TAIL_LINES:])

    def _write(self, record: PidRecord) -> None:
        """Put a pid file in place as a whole: another command, or the guard of one that is killed now, may look."""
        beside = self._pid_file.with_name(f"{self._pid_file.name}.part")
        beside.write_text(json.dumps(asdict(record)))
        beside.replace(self._pid_file)

    def _running(self) -> psutil.Process | None:
        record = self.record()
        return self._find(record) if record else None

    @staticmethod
    def _find(record: PidRecord) -> psutil.Process | None:
        """Return the process of a record, unless it has ended (reaped or not) or the pid is another's by now."""
        try:
            process = psutil.Process(record.pid)
            found = process_record(process)
            same = found.boot == record.boot and abs(found.started - record.started) < STARTED_TOLERANCE_SECONDS
            return process if same and process.status() != psutil.STATUS_ZOMBIE else None
        except psutil.NoSuchProcess:
            return None

    def _serving_event(self) -> dict[str, Any] | None:
        with self.log.open("rb") as log:
            log.seek(self._log_start)
            return serving_event(log.read().decode(errors="replace"))

    def _failure(self, what: str) -> str:
        return f"{self.name} {what}; the end of {self.log}:\n{self.tail()}"


def serving_event(log: str) -> dict[str, Any] | None:
    """Find the JSON line by which a service says where it listens.

    Args:
        log: what the service wrote so far; lines that are not JSON are none of ours.

    Returns:
        The line with its keys port and metrics_port, or None when there is none yet.
    """
    for line in log.splitlines(keepends=True):
        if '"serving"' in line and line.endswith("\n"):
            with suppress(json.JSONDecodeError):
                event = json.loads(line)
                if isinstance(event, dict) and event.get("event") == "serving":
                    return event
    return None
