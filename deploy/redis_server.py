"""A real Redis on loopback, from the virtual environment or PATH."""

import shutil
import socket
import sys
from contextlib import suppress
from pathlib import Path

import redis

from deploy.process import LoggedProcess, PidRecord, StartFailed

HOST = "127.0.0.1"
START_SECONDS = 30.0
CALL_SECONDS = 2.0
TRIES = 3


def start_redis(process: LoggedProcess, data: Path, port: int = 0) -> PidRecord:
    """Start Redis with an append-only file and wait until it answers.

    Args:
        process: to run it as.
        data: folder for what it stores; made if needed.
        port: to listen on; 0 takes a free one.

    Returns:
        The running process, with its port.

    Raises:
        StartFailed: there is no redis-server, or it did not start.
    """
    program = _program()
    for tries_left in reversed(range(TRIES)):
        try:
            return _launch(program, process, data, port or _free_port())
        except StartFailed:  # what was free a moment ago may be taken
            process.kill()  # it was too slow, if it runs still
            if port or not tries_left:
                raise
    raise AssertionError("the last try returns or raises")


def _launch(program: str, process: LoggedProcess, data: Path, port: int) -> PidRecord:
    data.mkdir(parents=True, exist_ok=True)
    listen = ["--bind", HOST, "--port", str(port)]
    process.start([program, *listen, "--dir", str(data), "--appendonly", "yes", "--save", ""], {})
    with redis.Redis(host=HOST, port=port, socket_timeout=CALL_SECONDS) as connection:
        process.wait_until(lambda: _answers(connection, process.record()), START_SECONDS, "answering")
    return process.remember_ports(port, 0)


def _program() -> str:
    beside_python = Path(sys.executable).with_name("redis-server")
    found = str(beside_python) if beside_python.exists() else shutil.which("redis-server")
    if found is None:
        raise StartFailed("redis-server is neither beside this Python nor on PATH: run `make setup`")
    return found


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        return int(listener.getsockname()[1])


def _answers(connection: redis.Redis, record: PidRecord | None) -> bool:
    """Tell whether Redis serves, and as the process meant: a taken port answers as another.

    While it loads its file it says who it is, but refuses PING.
    """
    with suppress(redis.RedisError):
        ours = record is not None and int(connection.info("server")["process_id"]) == record.pid
        return ours and bool(connection.ping())
    return False
