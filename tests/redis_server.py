"""A real redis-server of our own on loopback, with fixtures: to be killed, paused, brought back older or empty."""

import contextlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ports import HOST, holding_port

START_SECONDS = 60.0  # for what takes a moment, unless the machine is busy


def redis_binary() -> str:
    """Return the redis-server of the virtual environment, or the one on PATH."""
    beside = Path(sys.executable).with_name("redis-server")
    binary = str(beside) if beside.exists() else shutil.which("redis-server")
    if binary is None:
        raise RuntimeError("There is no redis-server in the virtual environment or on PATH.")
    return binary


class RedisServer:
    """One redis-server process on one port and in one folder, over restarts too.

    Without ``append_only`` its file is what the last ``save`` or ``stop`` wrote, so that ``kill`` and ``start`` bring
    it back older than it was. With it every acknowledged write survives a kill.
    """

    def __init__(self, folder: Path, port: int, *, append_only: bool = False) -> None:
        self.folder = folder
        self.port = port
        self.append_only = append_only
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://{HOST}:{self.port}/0"

    def start(self) -> None:
        """Start it and wait until it serves."""
        options = {
            "bind": [HOST],
            "port": [str(self.port)],
            "dir": [str(self.folder)],
            "logfile": ["redis.log"],
            "save": ["3600", "1"],  # after an hour, and at the end when anything changed
            "appendonly": ["yes" if self.append_only else "no"],
            "appendfsync": ["always"],
        }
        arguments = [word for name, values in options.items() for word in (f"--{name}", *values)]
        self._process = subprocess.Popen([redis_binary(), *arguments])
        deadline = time.monotonic() + START_SECONDS
        while not self._serves():
            if self._process.poll() is not None:
                raise RuntimeError(f"redis-server did not start: {self._log()}")
            if time.monotonic() > deadline:
                self.kill()
                raise RuntimeError(f"redis-server does not serve: {self._log()}")
            time.sleep(0.01)

    def stop(self) -> None:
        """End it in order; it writes its file first."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it at once; it writes nothing."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """End it in order and bring it back with what it held."""
        self.stop()
        self.start()

    def restart_empty(self) -> None:
        """Bring it back having forgotten everything."""
        self.kill()
        for path in self.folder.iterdir():
            path.unlink()
        self.start()

    def save(self) -> None:
        """Write the file now: what it comes back with after a kill."""
        if not self.command("SAVE").startswith(b"+OK"):
            raise RuntimeError(f"redis-server did not save: {self._log()}")

    def command(self, *words: str) -> bytes:
        """Send a command and return the first piece of the raw answer."""
        with socket.create_connection((HOST, self.port), timeout=START_SECONDS) as connection:
            connection.sendall(" ".join(words).encode() + b"\r\n")
            return connection.recv(65536)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Keep it from answering: connections stay open and calls hang."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def _serves(self) -> bool:
        """Tell whether the process that answers is ours and has loaded its file."""
        assert self._process is not None
        try:
            ours = f"process_id:{self._process.pid}\r".encode() in self.command("INFO", "server")
            return ours and self.command("PING").startswith(b"+PONG")
        except OSError:
            return False

    def _end(self, how: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(START_SECONDS)
            self._process = None

    def _log(self) -> str:
        path = self.folder / "redis.log"
        return path.read_text()[-2000:] if path.exists() else "no log"


@contextlib.contextmanager
def running_redis(*, append_only: bool = False) -> Iterator[RedisServer]:
    """Run a redis-server in a temporary folder; it is gone afterwards."""
    with tempfile.TemporaryDirectory() as folder, holding_port() as port:
        server = RedisServer(Path(folder), port, append_only=append_only)
        try:
            server.start()
            yield server
        finally:
            server.kill()


@pytest.fixture(scope="module")
def redis_server() -> Iterator[RedisServer]:
    """One server for the tests of a module."""
    with running_redis() as server:
        yield server


@pytest.fixture
def redis_url(redis_server: RedisServer) -> str:
    """Its address, emptied for each test."""
    assert redis_server.command("FLUSHALL").startswith(b"+OK")
    return redis_server.url
