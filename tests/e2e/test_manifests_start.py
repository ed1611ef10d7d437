"""The services start from what the manifests say: init containers, environment, Redis and its user, probes, an end."""

import re
import secrets
import socket
import subprocess
import sys
import urllib.request
from urllib.parse import urlsplit

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from deploy.process import LoggedProcess
from deploy.system import MODULES
from tests.e2e.calls import Caller
from tests.e2e.manifest_pods import SECONDS, SECRETS, Pods, clean
from tests.fake_hub import FakeHub
from tests.manifests import container, environment, named, of_kind, pod, rendered, workload
from tests.ports import HOST, holding_port
from tests.redis_server import redis_binary
from tests.tiny_models import write_tiny_model

MANIFESTS = rendered("local")
ON_GPUS = rendered("heterogeneous-gpu", "keda")
REVISION = "1" * 40
MODEL = f"tiny/model@{REVISION}"


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


@pytest.fixture(scope="module")
def pods(tmp_path_factory, receiver, volume, redis_url):
    folder = tmp_path_factory.mktemp("pods")
    for name in MODULES:
        (folder / name).mkdir()
        (folder / name / "models").symlink_to(volume)
    given = {
        "TARGET_MODEL": MODEL,
        "DRAFT_MODEL": f"layers:1:{MODEL}",
        "COORDINATOR_REDIS_URL": redis_url,
        "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint,
    }
    with Pods(MANIFESTS, folder, given) as pods:
        yield pods


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


def test_who_has_no_password_can_ping_redis_and_do_nothing_else(redis_url):
    """The kubelet's probe has none."""
    with socket.create_connection((HOST, urlsplit(redis_url).port), timeout=SECONDS) as connection:
        answers = connection.makefile("rb")
        connection.sendall(b"PING\r\nGET specdec:x\r\nCONFIG GET dir\r\n")
        assert answers.readline() == b"+PONG\r\n"
        assert [answers.readline().split()[0] for _ in range(2)] == [b"-NOPERM", b"-NOPERM"]


@pytest.mark.parametrize("name", MODULES)
def test_readiness_is_answered_on_the_port_for_health(pods, name):
    assert ask(pods, name, container(MANIFESTS, name)["readinessProbe"]) == health_pb2.HealthCheckResponse.SERVING


def test_what_keda_scales_by_is_exported(pods):
    for scaled in of_kind(ON_GPUS, "ScaledObject"):
        [metric] = re.findall(r"specdec_\w+", scaled["spec"]["triggers"][0]["metadata"]["query"])
        address = f"http://{HOST}:{pods.metrics[scaled['metadata']['name']]}/metrics"
        with urllib.request.urlopen(address, timeout=SECONDS) as page:
            assert re.search(rf"^{metric} ", page.read().decode(), re.MULTILINE)
