"""The services that a benchmark asks: a system in processes, and further processes beside it that share its parts."""

import itertools
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import grpc
import redis

from benchmarks.recording import CALL_SECONDS
from deploy.laptop import START_SECONDS
from deploy.process import LoggedProcess, PidRecord
from deploy.system import GRACE_SECONDS, System
from specdec.v1 import common_pb2, generation_pb2_grpc

HOST = "127.0.0.1"
ASK_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Services:
    """A running system.

    Attributes:
        system: its processes.
        stub: of its coordinator.
        models: what target and draft say of themselves.
        redis: version of the server.
        environment: of its processes, on top of this one's.
    """

    system: System
    stub: Any
    models: Any
    redis: str
    environment: Mapping[str, str]


@contextmanager
def running(target: str, draft: str, environment: Mapping[str, str]) -> Iterator[Services]:
    """Run a system with a pair of models.

    Args:
        target: the target's model.
        draft: the draft's model.
        environment: variables of every process, on top of this one's.

    Raises:
        StartFailed: it did not start.
    """
    with (
        tempfile.TemporaryDirectory() as folder,
        System(
            Path(folder), target=target, draft=draft, environment=environment, start_seconds=START_SECONDS
        ) as system,
        grpc.insecure_channel(system.address("coordinator")) as channel,
        redis.Redis.from_url(system.redis_url) as store,
    ):
        stub = generation_pb2_grpc.GenerationServiceStub(channel)
        models = stub.GetModelInfo(common_pb2.GetModelInfoRequest(), timeout=CALL_SECONDS)
        version = str(store.info("server")["redis_version"])
        yield Services(system, stub, models, version, environment)


_NUMBERS = itertools.count(1)  # of all processes beside systems: blocks may be nested, and names are those of pid files


@dataclass(frozen=True, slots=True)
class Place:
    """Where a process serves.

    Attributes:
        address: host:port for calls.
        metrics_url: where Prometheus finds it.
        pid: process id.
    """

    address: str
    metrics_url: str
    pid: int


class Beside:
    """Further processes beside a system. They end with the block, and when this process is killed."""

    def __init__(self, services: Services) -> None:
        """Start nothing yet."""
        self._services = services
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        """Begin."""
        return self

    def __exit__(self, *_: object) -> None:
        """End what was started, the latest first."""
        self._stack.close()

    def link(self, to: str, round_trip_ms: float) -> str:
        """Start a link that adds to the round trip to an address; return its own address."""
        flags = [to, "--round-trip-ms", str(round_trip_ms)]
        _, place = self._start("link", ["benchmarks.link", *flags], {})
        return place.address

    def draft(self, model: str, environment: Mapping[str, str]) -> Place:
        """Start another draft."""
        flags = ["--host", HOST, "--port", "0", "--metrics-port", "-1", "--model", model]
        _, place = self._start("draft", ["draft_service", *flags], environment)
        return place

    def coordinator(self, target: str, draft: str, redis_server: str) -> tuple[Place, Any]:
        """Start another coordinator and wait until its draft has joined.

        Args:
            target: address of the target.
            draft: address of the draft.
            redis_server: address of Redis.

        Returns:
            Where it serves, and its stub.
        """
        flags = ["--host", HOST, "--port", "0", "--metrics-port", "-1", "--redis-url", f"redis://{redis_server}/0"]
        flags += ["--target-addresses", target, "--draft-addresses", draft]
        process, place = self._start("coordinator", ["coordinator", *flags], {})
        stub = self.stub(place.address)
        process.wait_until(lambda: _draft_joined(stub), START_SECONDS, "joined by the draft")
        return place, stub

    def stub(self, address: str) -> Any:
        """Return a stub of a coordinator; its channel is closed with the block."""
        return generation_pb2_grpc.GenerationServiceStub(self._stack.enter_context(grpc.insecure_channel(address)))

    def _start(self, kind: str, module: list[str], environment: Mapping[str, str]) -> tuple[LoggedProcess, Place]:
        folder = self._services.system.folder
        process = LoggedProcess(folder, f"beside-{next(_NUMBERS)}-{kind}")
        guard = [sys.executable, "-m", "deploy.guard", str(folder), process.name]
        self._stack.enter_context(subprocess.Popen(guard, stdin=subprocess.PIPE, start_new_session=True))
        self._stack.callback(process.end, GRACE_SECONDS)
        process.start([sys.executable, "-m", *module], {**self._services.environment, **environment})
        return process, _place(process.wait_listening(START_SECONDS))


def _place(record: PidRecord) -> Place:
    return Place(f"{HOST}:{record.port}", f"http://{HOST}:{record.metrics_port}/metrics", record.pid)


def _draft_joined(stub: Any) -> bool:
    with suppress(grpc.RpcError):
        return bool(stub.GetModelInfo(common_pb2.GetModelInfoRequest(), timeout=ASK_SECONDS).HasField("draft"))
    return False
