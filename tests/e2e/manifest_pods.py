"""One pod of each service as a process on loopback, with the environment of its container in the manifests.

What a cluster gives is put in its place: a folder for each volume, free ports, loopback for names, tiny models.
"""

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.request import urlopen

from deploy.process import LoggedProcess
from deploy.system import MODULES
from tests.manifests import Object, container, environment, pod, workload
from tests.ports import HOST

SECRETS = {"username": "specdec", "password": "it's a $ecret"}
SECONDS = 120.0


def clean(environment: Mapping[str, str]) -> list[str]:
    """Return what runs a command with an environment of its own, and little more than nothing of ours."""
    kept = {"PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1"}
    return ["env", "-i", *(f"{name}={value}" for name, value in (kept | dict(environment)).items())]


class Pods:
    """Started by ``with``, and ended as the kubelet would: each must say that it stopped before its grace is over.

    Attributes:
        processes: by name of the service.
        ports: for calls, in the same way.
        metrics: for Prometheus.
    """

    def __init__(self, objects: tuple[Object, ...], folder: Path, given: Mapping[str, str]) -> None:
        """Start nothing yet.

        Args:
            objects: the deployment.
            folder: for logs; a folder in it named like a service holds what is mounted there, by its path.
            given: variables in the place of the manifests'.
        """
        self.processes = {name: LoggedProcess(folder, name) for name in MODULES}
        self.ports: dict[str, int] = {}
        self.metrics: dict[str, int] = {}
        self._objects = objects
        self._folder = folder
        self._given = dict(given)

    def __enter__(self) -> Self:
        """Start the services and wait until all serve, the coordinator with the draft beside it."""
        try:
            for step in (self._launch, self._wait):
                for name in ("target", "draft"):
                    step(name)
            self._launch("coordinator")
            self._wait("coordinator")
            self.processes["coordinator"].wait_until(self._draft_joined, SECONDS, "joined by the draft")
        except BaseException:
            self._kill()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """End the services."""
        try:
            for name in ("coordinator", "draft", "target"):
                self.processes[name].end(pod(workload(self._objects, name))["terminationGracePeriodSeconds"])
                assert '"stopped"' in self.processes[name].tail()
        finally:
            self._kill()

    def health_port(self, name: str) -> int:
        """Return the port for probes of a service that has started."""
        lines = map(json.loads, self.processes[name].log.read_text().splitlines())
        return next(line["health_port"] for line in lines if line["event"] == "listening")

    def _launch(self, name: str) -> None:
        said = environment(self._objects, container(self._objects, name), SECRETS)
        said |= {key: value for key, value in self._given.items() if key in said}
        said |= {f"{name.upper()}_PORT": "0", f"{name.upper()}_HEALTH_PORT": "-1", f"{name.upper()}_METRICS_PORT": "-1"}
        said |= {"OTEL_BSP_SCHEDULE_DELAY": "100"}  # milliseconds, so that nobody waits for the usual five seconds
        if name == "coordinator":
            for other, port in self.ports.items():
                said[f"COORDINATOR_{other.upper()}_ADDRESSES"] = f"dns:///localhost:{port}"
        mounts = tuple(f"{mount['mountPath']}/" for mount in container(self._objects, name)["volumeMounts"])
        place = self._folder / name
        said = {key: f"{place}{value}" if f"{value}/".startswith(mounts) else value for key, value in said.items()}
        self.processes[name].start([*clean(said), sys.executable, "-m", MODULES[name]], {})

    def _wait(self, name: str) -> None:
        record = self.processes[name].wait_listening(SECONDS)
        self.ports[name], self.metrics[name] = record.port, record.metrics_port

    def _draft_joined(self) -> bool:
        with urlopen(f"http://{HOST}:{self.metrics['coordinator']}/metrics", timeout=SECONDS) as page:
            return 'specdec_replicas_usable{service="draft"} 1.0' in page.read().decode()

    def _kill(self) -> None:
        for process in self.processes.values():
            process.kill()
