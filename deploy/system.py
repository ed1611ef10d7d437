"""Redis, the target, the draft and the coordinator as processes on loopback.

``System`` is what ``deploy.laptop`` runs and what tests of the whole system run::

    with System(tmp_path, target="synthetic:seed=1", draft="synthetic:seed=1,agreement=0.8") as system:
        channel = grpc.insecure_channel(system.address("coordinator"))
"""

import logging
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from deploy.process import LoggedProcess, PidRecord, StartFailed
from deploy.redis_server import CALL_SECONDS, HOST, start_redis
from specdec.v1 import common_pb2, generation_pb2_grpc

NAMES = ("redis", "target", "draft", "coordinator")
MODULES = {"target": "target_service", "draft": "draft_service", "coordinator": "coordinator"}
DRAIN_SECONDS = 5
GRACE_SECONDS = 10.0
# Time for the coordinator, which loads no model, to find its peers.
JOIN_SECONDS = 60.0
# Settings of doors that whoever starts and asks the services here could not pass.
CLOSED_DOORS = re.compile(
    r"(TARGET|DRAFT|COORDINATOR)_TLS_\w+|COORDINATOR_(PEER_TLS_\w+|TOKENS_FILE|REDIS_(USERNAME|PASSWORD|CA))",
    re.IGNORECASE,
)

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Ports:
    """Where the processes listen.

    Attributes:
        calls: by name of the process; 0 or absent takes any free port.
        metrics: by name of the service; absent takes any free port, 0 is off.
    """

    calls: Mapping[str, int] = field(default_factory=dict)
    metrics: Mapping[str, int] = field(default_factory=dict)


def refuse_closed_doors(environment: Mapping[str, str]) -> None:
    """Refuse settings under which the system would run and nobody here could tell, nor get an answer from it.

    Raises:
        StartFailed: there are such; the message names them.
    """
    closed = sorted(name for name, value in environment.items() if value and CLOSED_DOORS.fullmatch(name))
    if closed:
        raise StartFailed(
            f"{', '.join(closed)}: the system on one machine is open, in plaintext, on loopback; start the services by "
            "hand to close doors, or unset the variables"
        )


def processes_in(folder: Path) -> dict[str, LoggedProcess]:
    """Return the processes of the system in a folder by name, in the order of a start, running or not."""
    return {name: LoggedProcess(folder.resolve(), name) for name in NAMES}


class System:
    """The whole system; a ``with`` block starts it and ends it, even when this process is killed."""

    def __init__(
        self,
        folder: Path,
        *,
        target: str,
        draft: str,
        ports: Ports = Ports(),
        environment: Mapping[str, str] | None = None,
        start_seconds: float = 120.0,
    ) -> None:
        """Start nothing yet.

        Args:
            folder: for logs, pid files and Redis' data.
            target: the target's model.
            draft: the draft's model.
            ports: where to listen.
            environment: variables for every process, on top of this one's, such as ``TARGET_DTYPE``.
            start_seconds: to wait for a model to load at most.

        Raises:
            StartFailed: see ``refuse_closed_doors``.
        """
        refuse_closed_doors(os.environ | dict(environment or {}))
        self.folder = folder.resolve()
        self.processes = processes_in(self.folder)
        self._models = {"target": target, "draft": draft}
        self._calls = dict(ports.calls)
        self._metrics = dict(ports.metrics)
        self._environment = dict(environment or {})
        self._start_seconds = start_seconds
        self._guard: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        """Start everything, with a guard that ends it should this process be killed."""
        command = [sys.executable, "-m", "deploy.guard", str(self.folder), *reversed(NAMES)]
        self._guard = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
        try:
            self.start()
        except BaseException:
            self._dismiss_guard()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """End everything."""
        try:
            self.stop()
        finally:
            self._dismiss_guard()

    def start(self) -> None:
        """Start everything and wait until the coordinator serves with the draft beside it.

        Raises:
            StartFailed: something ended or was too slow; nothing is left running.
        """
        try:
            self.start_service("redis")
            for name in ("target", "draft"):
                self._launch(name)
            for name in ("target", "draft"):
                self._wait_serving(name)
            self.start_service("coordinator")
            self.wait_joined()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End everything that runs, the coordinator first and Redis last."""
        for process in reversed(self.processes.values()):
            process.end(GRACE_SECONDS)

    def start_service(self, name: str) -> None:
        """Start one process, on the ports it had before, and wait until it serves.

        Args:
            name: redis, target, draft or coordinator.

        Raises:
            StartFailed: it ended or was too slow.
        """
        if name == "redis":
            port = self._calls.get(name, 0)
            self._remember(name, start_redis(self.processes[name], self.folder / "redis", port))
            _log.info("redis answers on %s", self.address(name))
        else:
            self._launch(name)
            self._wait_serving(name)

    def stop_service(self, name: str) -> None:
        """End one process with SIGTERM and time to drain."""
        self.processes[name].end(GRACE_SECONDS)

    def kill(self, name: str) -> None:
        """End one process with SIGKILL."""
        self.processes[name].kill()

    def restart(self, name: str) -> None:
        """End one process and start it again on the same ports; the others run, and work with it again afterwards."""
        self.stop_service(name)
        self.start_service(name)
        self.wait_joined()

    def wait_joined(self) -> None:
        """Wait until the coordinator serves with the draft beside it.

        Raises:
            StartFailed: the coordinator ended, or the draft did not join in time.
        """
        self.processes["coordinator"].wait_until(self._draft_joined, JOIN_SECONDS, "joined by the draft")

    def address(self, name: str) -> str:
        """Return HOST:PORT of a process that has been started."""
        return f"{HOST}:{self._calls[name]}"

    def metrics_url(self, name: str) -> str:
        """Return where Prometheus finds a service's metrics."""
        return f"http://{HOST}:{self._metrics[name]}/metrics"

    def log(self, name: str) -> Path:
        """Return the log file of a process."""
        return self.processes[name].log

    @property
    def redis_url(self) -> str:
        """Where Redis is, once started."""
        return f"redis://{self.address('redis')}/0"

    def _launch(self, name: str) -> None:
        flags = {
            "host": HOST,
            "port": self._calls.get(name, 0),
            "metrics-port": self._metrics.get(name, -1),
            "drain-seconds": DRAIN_SECONDS,
        }
        if name == "coordinator":
            flags["target-addresses"] = self.address("target")
            flags["draft-addresses"] = self.address("draft")
            flags["redis-url"] = self.redis_url
        else:
            flags["model"] = self._models[name]
            _log.info("%s loads %s (log: %s)", name, self._models[name], self.log(name))
        arguments = [text for flag, value in flags.items() for text in (f"--{flag}", str(value))]
        self.processes[name].start([sys.executable, "-m", MODULES[name], *arguments], self._environment)

    def _wait_serving(self, name: str) -> None:
        process = self.processes[name]
        self._remember(name, process.wait_listening(self._seconds(name)))
        with grpc.insecure_channel(self.address(name)) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            process.wait_until(lambda: _serves(stub), self._seconds(name), "serving")
        _log.info("%s serves on %s", name, self.address(name))

    def _seconds(self, name: str) -> float:
        return self._start_seconds if name in self._models else JOIN_SECONDS

    def _remember(self, name: str, record: PidRecord) -> None:
        self._calls[name], self._metrics[name] = record.port, record.metrics_port

    def _draft_joined(self) -> bool:
        with grpc.insecure_channel(self.address("coordinator")) as channel:
            stub = generation_pb2_grpc.GenerationServiceStub(channel)
            with suppress(grpc.RpcError):
                return bool(stub.GetModelInfo(common_pb2.GetModelInfoRequest(), timeout=CALL_SECONDS).HasField("draft"))
        return False

    def _dismiss_guard(self) -> None:
        if self._guard and self._guard.stdin:
            self._guard.stdin.close()
            self._guard.wait()
        self._guard = None


def _serves(stub: health_pb2_grpc.HealthStub) -> bool:
    with suppress(grpc.RpcError):
        answer = stub.Check(health_pb2.HealthCheckRequest(), timeout=CALL_SECONDS)
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)
    return False
