"""The page's example and the changes to copy: each is put together as an operator would, and rendered."""

import os
import re
from functools import cache, partial

import kubernetes_validate
import pytest
import yaml
from kubernetes_validate import utils

from tests.manifests import KUBERNETES, container, environment, kustomize, named, of_kind, pod, rendered, workload

PAGE = (KUBERNETES.parent / "README.md").read_text()
CHANGES = (KUBERNETES / "EXAMPLES.md").read_text()
SECRETS = {"username": "specdec", "password": "secret"}
# Of what the changes touch, those that Kubernetes itself defines.
CHANGED = ("Deployment", "StatefulSet", "Service", "NetworkPolicy", "ResourceClaimTemplate")
TERMS = "requiredDuringSchedulingIgnoredDuringExecution"


def blocks(text):
    return [yaml.safe_load(block) for block in re.findall(r"^```yaml\n(.*?)^```", text, re.MULTILINE | re.DOTALL)]


def changes(title):
    """Return the blocks under a heading of EXAMPLES.md."""
    return blocks(re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", CHANGES, re.MULTILINE | re.DOTALL)[1])


SYSTEM, MINE = blocks(PAGE)


@pytest.fixture
def built(tmp_path, validate):
    """Return what renders the page's example: another overlay or components below, changes and files on top."""

    def build(*changes, overlay="heterogeneous-gpu", components=None, leave=(), files=None):
        (tmp_path / "system").mkdir()
        base = os.path.relpath(KUBERNETES, (tmp_path / "system").resolve())
        below = yaml.safe_dump(SYSTEM).replace("heterogeneous-gpu", overlay)
        below = yaml.safe_load(below.replace("../../deploy/kubernetes", base))
        if components is not None:
            below["components"] = [f"{base}/components/{name}" for name in components]
        top = {key: value for key, value in MINE.items() if key not in leave}
        for change in changes:
            top |= {key: [*top.get(key, []), *entries] for key, entries in change.items()}
        for path, content in {"system/kustomization": below, "kustomization": top, **(files or {})}.items():
            (tmp_path / f"{path}.yaml").write_text(yaml.safe_dump(content))
        objects = tuple(yaml.safe_load_all(kustomize(tmp_path)))
        for each in objects:
            if each["kind"] in CHANGED:
                validate(each, "1.37")
        return objects

    return build


@pytest.fixture(scope="module")
def validate():
    """Return the strict validation, which otherwise reads all schemas anew for each object."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(utils, "schema_contents", cache(utils.schema_contents))
        yield partial(kubernetes_validate.validate, strict=True)


def limits(objects, name):
    return container(objects, name)["resources"]["limits"]


def node_terms(objects, name):
    [term] = pod(workload(objects, name))["affinity"]["nodeAffinity"][TERMS]["nodeSelectorTerms"]
    return {each["key"].removeprefix("nvidia.com/gpu."): each["values"] for each in term["matchExpressions"]}


def test_the_pages_example_is_what_it_says(built):
    objects = built()
    for name in ("coordinator", "draft", "target"):
        assert container(objects, name)["image"] == f"registry.example/specdec-{name}:0.1.0"
    assert [workload(objects, name)["spec"]["replicas"] for name in ("coordinator", "draft", "target")] == [2, 2, 1]
    settings = environment(objects, container(objects, "target"))
    assert settings["TARGET_MAX_SESSIONS"] == "128"
    assert settings["OTEL_EXPORTER_OTLP_ENDPOINT"] == "http://collector.observability:4317"
    assert "--tls-port" in container(objects, "redis")["command"]


def test_the_pages_example_with_keda_leaves_the_pods_to_it(built):
    assert "with the component keda the coordinator's alone" in PAGE
    mine = [each for each in MINE["replicas"] if each["name"] == "coordinator"]
    objects = built({"replicas": mine}, components=["keda", "monitoring"], leave=["replicas"])
    assert workload(objects, "coordinator")["spec"]["replicas"] == 2
    assert not [name for name in ("draft", "target") if "replicas" in workload(objects, name)["spec"]]


def test_the_pages_numbers_of_pods_would_fight_keda(built):
    """Why the page tells to leave them out."""
    assert "replicas" in workload(built(components=["keda", "monitoring"]), "target")["spec"]


def test_the_pages_images_leave_a_lookup_its_own(built):
    made = container(built(components=["lookup-draft"]), "draft")
    assert made["image"] == "registry.example/specdec-draft:0.1.0-cpu"


def test_what_an_operator_sets_wins_over_components():
    names = ("tls", "redis-tls", "tokens", "draft-on-mig", "jaeger", "collector")
    literals = {}
    for name in names:
        made = yaml.safe_load((KUBERNETES / "components" / name / "kustomization.yaml").read_text())
        for each in made.get("configMapGenerator", []):
            for literal in each.get("literals", []):
                literals.setdefault(each["name"], {})[literal.partition("=")[0]] = "mine"
    settings = {name: tuple(f"{key}={value}" for key, value in said.items()) for name, said in literals.items()}
    objects = rendered("heterogeneous-gpu", *names, **settings)
    assert {"coordinator", "draft", "target", "telemetry", "collector-settings"} == literals.keys()
    for name, said in literals.items():
        [data] = [
            each["data"]
            for each in of_kind(objects, "ConfigMap")
            if re.fullmatch(rf"{name}-\w{{10}}", each["metadata"]["name"])
        ]
        assert data.items() >= said.items()


def test_four_gpus_a_target(built):
    objects = built(*changes("Four GPUs a target"))
    assert "--nproc-per-node=4" in container(objects, "target")["command"]
    assert limits(objects, "target") == {"memory": "160Gi", "nvidia.com/gpu": 4}
    assert node_terms(objects, "target") == {"memory": ["75000"], "count": ["3"]}
    [claim] = workload(objects, "target")["spec"]["volumeClaimTemplates"]
    assert claim["spec"]["resources"]["requests"]["storage"] == "300Gi"
    assert {"models", "shm", "server-tls"} <= {each["name"] for each in container(objects, "target")["volumeMounts"]}


def test_one_gpu_a_target(built):
    objects = built(*changes("One GPU a target"))
    assert container(objects, "target")["command"] == ["python", "-m", "target_service"]
    assert limits(objects, "target") == {"memory": "80Gi", "nvidia.com/gpu": 1}
    assert node_terms(objects, "target") == {"memory": ["75000"]}


def test_drafts_on_another_slice(built):
    objects = built(*changes("Drafts on another slice"), components=["draft-on-mig"])
    assert limits(objects, "draft") == {"memory": "8Gi", "nvidia.com/mig-2g.20gb": 1}


def test_other_gpus_by_claim(built):
    objects = built(*changes("Other GPUs by claim"), overlay="dra")
    [request] = named(objects, "ResourceClaimTemplate", "target-gpus")["spec"]["spec"]["devices"]["requests"]
    assert f"--nproc-per-node={request['exactly']['count']}" in container(objects, "target")["command"]
    assert "H200" in request["exactly"]["selectors"][0]["cel"]["expression"]


def test_a_redis_of_ones_own(built):
    mine, policy = changes("A Redis of your own")
    objects = built(mine, components=["tls", "own-redis", "network-policy"], files={"to-redis": policy})
    settings = environment(objects, container(objects, "coordinator"), SECRETS)
    [mount] = [each for each in container(objects, "coordinator")["volumeMounts"] if each["name"] == "redis-ca"]
    assert settings["COORDINATOR_REDIS_CA"] == f"{mount['mountPath']}/ca.crt"
    [rule] = named(objects, "NetworkPolicy", "to-redis")["spec"]["egress"]
    assert f":{rule['ports'][0]['port']}/" in settings["COORDINATOR_REDIS_URL"]
    assert not [each for each in of_kind(objects, "StatefulSet", "Service") if each["metadata"]["name"] == "redis"]


def test_traces_to_a_backend_of_ones_own(built):
    mine = [each for each in MINE["configMapGenerator"] if each["name"] != "telemetry"]
    change = changes("Traces to a backend of your own")
    objects = built({"configMapGenerator": mine}, *change, components=["collector"], leave=["configMapGenerator"])
    spans = environment(objects, container(objects, "target"))
    assert spans["OTEL_EXPORTER_OTLP_ENDPOINT"] == "http://collector:4317"
    settings = environment(objects, container(objects, "collector"))
    assert settings == {
        "TRACES_ENDPOINT": "traces.example:4317",
        "TRACES_INSECURE": "false",
        "SHARE_PERCENT": "1",
    }
    [tls] = re.findall(r"tls: .*", (KUBERNETES / "components" / "collector" / "collector.yaml").read_text())
    assert tls == 'tls: {insecure: "${env:TRACES_INSECURE}"}'


def test_keda_and_prometheus_elsewhere(built):
    usual = {
        each["metadata"]["name"]: each["spec"]["triggers"][0]["metadata"]
        for each in of_kind(rendered("heterogeneous-gpu", "keda"), "ScaledObject")
    }
    objects = built(
        *changes("KEDA and Prometheus elsewhere"),
        components=["keda", "monitoring", "network-policy"],
        leave=["replicas"],
    )
    for each in of_kind(objects, "ScaledObject"):
        trigger = each["spec"]["triggers"][0]["metadata"]
        assert trigger["query"] == usual[each["metadata"]["name"]]["query"].replace('specdec"', 'chat"')
        assert trigger["serverAddress"] != usual[each["metadata"]["name"]]["serverAddress"]
    [rule] = named(objects, "NetworkPolicy", "specdec-metrics")["spec"]["ingress"]
    assert "monitoring" not in str(rule["from"])


def test_clients_elsewhere(built):
    objects = built(*changes("Clients elsewhere"))
    assert "coordinator.specdec.svc" in named(objects, "Certificate", "coordinator")["spec"]["dnsNames"]
    assert named(objects, "Service", "coordinator")["spec"]["type"] == "LoadBalancer"


def test_a_runtime_that_is_not_the_default_one(built):
    objects = built(*changes("A runtime that is not the default one"))
    assert [pod(workload(objects, name)).get("runtimeClassName") for name in ("draft", "target")] == ["nvidia"] * 2


def test_every_change_is_rendered_here_and_every_link_leads_to_one():
    titles = re.findall(r"^## (.+)$", CHANGES, re.MULTILINE)
    with open(__file__) as here:
        text = here.read()
    assert not [title for title in titles if f'changes("{title}")' not in text]
    linked = set(re.findall(r"EXAMPLES\.md#([\w-]+)", PAGE))
    assert linked <= {title.lower().replace(" ", "-") for title in titles}
