"""The services start from what the manifests say: init containers, environment, Redis and its user, probes, and an end.

What a cluster gives is put in its place: a folder for each volume, free ports, loopback for names, tiny models.
"""

import json
import os
import re
import secrets
import subprocess
import sys
import urllib.request
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from deploy.process import LoggedProcess
from deploy.system import MODULES
from tests.e2e.calls import Caller
from tests.fake_hub import FakeHub
from tests.manifests import container, environment, named, of_kind, pod, rendered, workload
from tests.ports import HOST, holding_port
from tests.redis_server import redis_binary
from tests.tiny_models import write_tiny_model

MANIFESTS = rendered("local")
ON_GPUS = rendered("heterogeneous-gpu", "keda")
REVISION = "1" * 40
MODEL = f"tiny/model@{REVISION}"
SECRETS = {"username": "specdec", "password": "it's a $ecret"}
SECONDS = 120.0


def clean(environment):
    """Return what runs a command with an environment of its own, and little more than nothing of ours."""
    kept = {"PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1"}
    return ["env", "-i", *(f"{name}={value}" for name, value in (kept | environment).items())]


def program(command):
    return [sys.executable if word == "python" else word for word in command]


@pytest.fixture(scope="module")
def volume(tmp_path_factory):
    """Stands for the volumes of weights, filled by the init containers from a hub."""
    folder = tmp_path_factory.mktemp("models")
    model = tmp_path_factory.mktemp("hub") / "model"
    write_tiny_model(model, layers=2)
    with FakeHub("tiny/model", {REVISION: model}) as hub:
        fetching = [fetch(name, folder, {"HF_ENDPOINT": hub.address}) for name in ("target", "coordinator")]
        for process in fetching:
            output, _ = process.communicate(timeout=SECONDS)
            assert process.returncode == 0, output
    return folder


def fetch(name, folder, extra):
    [made] = pod(workload(ON_GPUS, name))["initContainers"]
    said = environment(ON_GPUS, made, SECRETS) | {"TARGET_MODEL": MODEL, "COORDINATOR_TOKENIZER": MODEL}
    said = {key: value.replace("/models", str(folder)) for key, value in said.items()}
    command = [re.sub(r"\$\((\w+)\)", lambda match: said[match[1]], word) for word in made["command"] + made["args"]]
    whole = [*clean(said | extra), *program(command)]
    return subprocess.Popen(whole, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


@pytest.fixture(scope="module")
def redis_url(tmp_path_factory):
    """Redis with the configuration of the manifests, and the users that its init container writes."""
    folder = tmp_path_factory.mktemp("redis")
    [made] = pod(workload(MANIFESTS, "redis"))["initContainers"]
    script = made["args"][0].replace("/acl", str(folder))
    subprocess.run([*clean(environment((), made, SECRETS)), *made["command"], script], check=True, timeout=SECONDS)
    assert SECRETS["password"] not in (folder / "users.acl").read_text()
    mounted = next(each for each in pod(workload(MANIFESTS, "redis"))["volumes"] if each["name"] == "config")
    config = named(MANIFESTS, "ConfigMap", mounted["configMap"]["name"])["data"]["redis.conf"]
    config = config.replace("/acl", str(folder)).replace("dir /data", f"dir {folder}")
    (folder / "redis.conf").write_text(config)
    process = LoggedProcess(folder, "redis")
    with holding_port() as port:
        process.start([redis_binary(), str(folder / "redis.conf"), "--bind", HOST, "--port", str(port)], {})
        try:
            process.wait_until(lambda: "Ready to accept" in process.log.read_text(), SECONDS, "ready")
            yield f"redis://{HOST}:{port}/0"
        finally:
            process.end(SECONDS)


class Pods:
    """One pod of each service."""

    def __init__(self, folder: Path, volume: Path, redis_url: str, endpoint: str) -> None:
        self.processes = {name: LoggedProcess(folder, name) for name in MODULES}
        self.ports: dict[str, int] = {}
        self.metrics: dict[str, int] = {}
        self._given = {
            "TARGET_MODEL": MODEL,
            "DRAFT_MODEL": f"layers:1:{MODEL}",
            "COORDINATOR_TOKENIZER": MODEL,
            "COORDINATOR_REDIS_URL": redis_url,
            "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint,
        }
        self._volume = volume

    def launch(self, name: str) -> None:
        """Start a service with its container's environment."""
        said = environment(MANIFESTS, container(MANIFESTS, name), SECRETS)
        said |= {key: value for key, value in self._given.items() if key in said or key.startswith(name.upper())}
        said |= {f"{name.upper()}_PORT": "0", f"{name.upper()}_HEALTH_PORT": "-1", f"{name.upper()}_METRICS_PORT": "-1"}
        said |= {"OTEL_BSP_SCHEDULE_DELAY": "100"}  # milliseconds, so that nobody waits for the usual five seconds
        said = {key: value.replace("/models", str(self._volume)) for key, value in said.items()}
        for other, port in self.ports.items():  # in the place of the first pod; the other addresses lead nowhere
            for addresses in said.keys() & {f"COORDINATOR_{other.upper()}_ADDRESSES"}:
                said[addresses] = ",".join([f"{HOST}:{port}", *said[addresses].split(",")[1:]])
        self.processes[name].start([*clean(said), sys.executable, "-m", MODULES[name]], {})

    def wait(self, name: str) -> None:
        """Wait until a service serves."""
        record = self.processes[name].wait_listening(SECONDS)
        self.ports[name], self.metrics[name] = record.port, record.metrics_port

    def health_port(self, name: str) -> int:
        lines = map(json.loads, self.processes[name].log.read_text().splitlines())
        return next(line["health_port"] for line in lines if line["event"] == "listening")


@pytest.fixture(scope="module")
def pods(tmp_path_factory, receiver, volume, redis_url):
    """Start the pods, and end them as the kubelet would: each says that it stopped before its grace is over."""
    pods = Pods(tmp_path_factory.mktemp("pods"), volume, redis_url, receiver.endpoint)
    try:
        for step in (pods.launch, pods.wait):
            for name in ("target", "draft"):
                step(name)
        pods.launch("coordinator")
        pods.wait("coordinator")
        yield pods
        for name in ("coordinator", "draft", "target"):
            pods.processes[name].end(pod(workload(MANIFESTS, name))["terminationGracePeriodSeconds"])
            assert '"stopped"' in pods.processes[name].tail()
    finally:
        for process in pods.processes.values():
            process.kill()


def ask(pods, name, probe):
    with grpc.insecure_channel(f"{HOST}:{pods.health_port(name)}") as channel:
        request = health_pb2.HealthCheckRequest(service=probe["grpc"]["service"])
        return health_pb2_grpc.HealthStub(channel).Check(request, timeout=SECONDS).status


def test_an_answer_and_its_trace_come_from_the_manifests_environment(pods, receiver):
    trace_id, caller = secrets.token_hex(16), Caller(f"{HOST}:{pods.ports['coordinator']}")
    request = {"prompt": "hello", "sampling_params": {"max_new_tokens": 8}, "speculation": {"gamma": 2}}
    events = caller.events(traceparent=f"00-{trace_id}-b7ad6b7169203331-01", **request)
    caller.channel.close()
    assert events[-1].usage.spec_draft_tokens > 0

    def services(spans):
        return {receiver.service_of(span) for span in spans if span.trace_id.hex() == trace_id}

    receiver.wait_for(lambda spans: services(spans) == {f"specdec-{name}" for name in MODULES})


@pytest.mark.parametrize("name", MODULES)
def test_readiness_is_answered_on_the_port_for_health(pods, name):
    assert ask(pods, name, container(MANIFESTS, name)["readinessProbe"]) == health_pb2.HealthCheckResponse.SERVING


def test_what_keda_scales_by_is_exported(pods):
    for scaled in of_kind(ON_GPUS, "ScaledObject"):
        [metric] = re.findall(r"specdec_\w+", scaled["spec"]["triggers"][0]["metadata"]["query"])
        address = f"http://{HOST}:{pods.metrics[scaled['metadata']['name']]}/metrics"
        with urllib.request.urlopen(address, timeout=SECONDS) as page:
            assert re.search(rf"^{metric} ", page.read().decode(), re.MULTILINE)
