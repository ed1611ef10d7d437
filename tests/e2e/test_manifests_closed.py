"""The components tls and tokens: mutual TLS from the certificates that they ask for, and nobody without a token."""

import hashlib
from pathlib import Path

import grpc
import pytest
from cryptography import x509

from specdec.v1 import common_pb2, generation_pb2, generation_pb2_grpc, target_pb2_grpc
from tests.certificates import Authority
from tests.e2e.manifest_pods import SECONDS, Pods
from tests.manifests import DEPLOYMENTS, container, named, of_kind, pod, rendered, workload
from tests.redis_server import running_redis

CLOSED = rendered(*DEPLOYMENTS["local, closed"])
TOKEN = "a-token"


@pytest.fixture(scope="module")
def secrets(tmp_path_factory):
    """Do what cert-manager does: return the folder of each secret that a certificate asks for."""
    folder = tmp_path_factory.mktemp("secrets")
    authorities, made = {}, {}
    certificates = of_kind(CLOSED, "Certificate")
    for each in [spec["spec"] for spec in certificates if spec["spec"].get("isCA")]:
        authorities[each["secretName"]] = Authority(folder, each["secretName"])
        made[each["secretName"]] = {"tls.crt": authorities[each["secretName"]].ca}
    for each in [spec["spec"] for spec in certificates if not spec["spec"].get("isCA")]:
        authority = authorities[named(CLOSED, "Issuer", each["issuerRef"]["name"])["spec"]["ca"]["secretName"]]
        # Loopback has the names of the pods.
        names = {"localhost" if name in ("draft", "target") else name for name in each.get("dnsNames", ["-"])}
        pair = authority.issue(each["secretName"], [x509.DNSName(name) for name in sorted(names)])
        made[each["secretName"]] = {"tls.crt": pair.certificate, "tls.key": pair.key, "ca.crt": authority.ca}
    (folder / "tokens").write_text(f"ann:{hashlib.sha256(TOKEN.encode()).hexdigest()}\n")
    return made | {"client-tokens": {"tokens": folder / "tokens"}}


def mount(folder, name, secrets):
    """Lay out a container's secrets as the kubelet would."""
    volumes = {volume["name"]: volume.get("secret") for volume in pod(workload(CLOSED, name))["volumes"]}
    for each in container(CLOSED, name)["volumeMounts"]:
        if secret := volumes.get(each["name"]):
            files = secrets[secret["secretName"]]
            place = folder / name / each["mountPath"].removeprefix("/")
            place.mkdir(parents=True)
            for item in secret.get("items") or [{"key": key, "path": key} for key in files]:
                (place / item["path"]).symlink_to(files[item["key"]])


@pytest.fixture(scope="module")
def pods(tmp_path_factory, secrets):
    folder = tmp_path_factory.mktemp("closed")
    for name in ("coordinator", "draft", "target"):
        mount(folder, name, secrets)
    with running_redis() as redis:
        models = {"TARGET_MODEL": "synthetic:seed=1", "DRAFT_MODEL": "synthetic:seed=1,agreement=0.8"}
        user = {"COORDINATOR_REDIS_USERNAME": "", "COORDINATOR_REDIS_PASSWORD": ""}
        places = {"COORDINATOR_REDIS_URL": redis.url, "OTEL_EXPORTER_OTLP_ENDPOINT": ""}
        with Pods(CLOSED, folder, models | user | places) as pods:
            yield pods


def channel_to(pods, name, secrets, shown=""):
    """Open a channel that trusts the servers' authority and shows the certificate of a secret, or none."""
    authority = Path(secrets["coordinator-tls"]["ca.crt"]).read_bytes()
    mine = [Path(secrets[shown][key]).read_bytes() for key in ("tls.key", "tls.crt")] if shown else []
    return grpc.secure_channel(f"localhost:{pods.ports[name]}", grpc.ssl_channel_credentials(authority, *mine))


@pytest.mark.long
@pytest.mark.parametrize("token", ["", TOKEN])
def test_an_answer_needs_a_token(pods, secrets, token):
    metadata = [("authorization", f"Bearer {token}")] if token else []
    request = generation_pb2.GenerateRequest(
        prompt="hello", speculation={"gamma": 2}, sampling_params={"max_new_tokens": 8}
    )
    with channel_to(pods, "coordinator", secrets) as channel:
        answer = generation_pb2_grpc.GenerationServiceStub(channel).Generate(
            request, metadata=metadata, timeout=SECONDS
        )
        if token:
            assert list(answer)[-1].usage.spec_draft_tokens > 0
        else:
            with pytest.raises(grpc.RpcError) as refused:
                list(answer)
            assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED


@pytest.mark.long
@pytest.mark.parametrize("shown", ["", "model-server-tls", "coordinator-client-tls"])
def test_a_target_answers_coordinators_alone(pods, secrets, shown):
    with channel_to(pods, "target", secrets, shown) as channel:
        asked = target_pb2_grpc.TargetServiceStub(channel).GetModelInfo
        if shown == "coordinator-client-tls":
            assert asked(common_pb2.GetModelInfoRequest(), timeout=SECONDS).model.vocabulary_size
        else:
            with pytest.raises(grpc.RpcError) as refused:
                asked(common_pb2.GetModelInfoRequest(), timeout=SECONDS)
            assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
