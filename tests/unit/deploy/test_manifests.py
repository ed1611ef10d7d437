"""Every overlay, alone and with components: what its objects say of each other, of the settings and of the images."""

import json
import re
import tomllib
from functools import cache, partial
from pathlib import Path
from urllib.parse import urlsplit

import kubernetes_validate
import pytest
from kubernetes_validate import utils

from deploy.settings_tables import README
from tests import manifests
from tests.manifests import (
    DEPLOYMENTS,
    GIVEN_SECRETS,
    KUBERNETES,
    SETTINGS,
    WORKLOADS,
    container,
    environment,
    kustomize,
    named,
    of_kind,
    pod,
    rendered,
    workload,
)

RELEASES = ("1.35", "1.36", "1.37")  # those that are supported
# Definitions that a cluster brings, not Kubernetes.
OTHERS_KINDS = ("cert-manager.io/", "keda.sh/", "monitoring.coreos.com/")
SECRETS = {"username": "specdec", "password": "secret"}


def test_without_kubectl_nothing_is_skipped(monkeypatch, tmp_path):
    monkeypatch.setattr(manifests, "KUBECTL", tmp_path / "kubectl")
    with pytest.raises(AssertionError, match="make setup"):
        kustomize(tmp_path)


def test_every_overlay_and_component_is_looked_at():
    looked_at = {name for stack in DEPLOYMENTS.values() for name in stack} | {"jaeger"}  # which local brings
    there = [*(KUBERNETES / "overlays").iterdir(), *(KUBERNETES / "components").iterdir()]
    assert {folder.name for folder in there} == looked_at


@pytest.fixture(params=DEPLOYMENTS)
def objects(request):
    return rendered(*DEPLOYMENTS[request.param])


def selects(selector, labels):
    """Tell whether a label selector matches labels."""
    chosen = all(labels.get(key) == value for key, value in selector.get("matchLabels", {}).items())
    listed = selector.get("matchExpressions", [])
    assert all(each["operator"] == "In" for each in listed)
    return chosen and all(labels.get(each["key"]) in each["values"] for each in listed)


def pods_of(objects):
    """Return the labels of each workload's pods, by the workload's name."""
    workloads = of_kind(objects, *WORKLOADS)
    return {each["metadata"]["name"]: each["spec"]["template"]["metadata"]["labels"] for each in workloads}


def chosen(objects, selector):
    return {name for name, labels in pods_of(objects).items() if selects(selector, labels)}


@pytest.fixture
def validate(monkeypatch):
    """Return the strict validation, which otherwise reads all schemas anew for each object."""
    monkeypatch.setattr(utils, "schema_contents", cache(utils.schema_contents))
    return partial(kubernetes_validate.validate, strict=True)


@pytest.mark.parametrize("release", RELEASES)
def test_the_schemas_of_supported_releases_are_kept(validate, release):
    everything = [each for stack in DEPLOYMENTS.values() for each in rendered(*stack)]
    ours = {json.dumps(each): each for each in everything if not each["apiVersion"].startswith(OTHERS_KINDS)}
    assert len(ours) > 30
    for each in ours.values():
        validate(each, release)


def test_a_misspelt_field_would_be_found(validate):
    broken = {**named(rendered("local"), "PodDisruptionBudget", "draft"), "spec": {"maxUnavailabel": 1}}
    with pytest.raises(kubernetes_validate.ValidationError):
        validate(broken, RELEASES[-1])


def test_no_object_is_there_twice_and_each_says_whose_it_is(objects):
    keys = [(each["kind"], each["metadata"]["name"]) for each in objects]
    assert len(set(keys)) == len(keys)
    generated = [each for each in objects if each["kind"] == "Secret"]
    labels = [labels_of(each) for each in objects if each not in generated]
    assert all(each.get("app.kubernetes.io/part-of") == "specdec" for each in labels)
    assert not [each for each in objects if "namespace" in each["metadata"]], "the operator chooses it"


def test_selectors_match_the_pods_they_are_for(objects):
    for each in of_kind(objects, *WORKLOADS):
        assert chosen(objects, each["spec"]["selector"]) == {each["metadata"]["name"]}
    for each in of_kind(objects, "Service"):
        assert chosen(objects, {"matchLabels": each["spec"]["selector"]}) == {each["metadata"]["name"]}
    for each in of_kind(objects, "PodDisruptionBudget"):
        assert chosen(objects, each["spec"]["selector"]) == {each["metadata"]["name"]}


def test_stateful_sets_have_headless_services_that_name_their_pods(objects):
    for each in of_kind(objects, "StatefulSet"):
        service = named(objects, "Service", each["spec"]["serviceName"])
        assert service["spec"]["clusterIP"] == "None"
        assert service["spec"].get("publishNotReadyAddresses", False) is (each["metadata"]["name"] in SETTINGS)
        assert selects({"matchLabels": service["spec"]["selector"]}, pods_of(objects)[each["metadata"]["name"]])


def test_services_lead_to_ports_of_containers(objects):
    for each in of_kind(objects, "Service"):
        ports = {port["name"]: port["containerPort"] for port in container(objects, each["metadata"]["name"])["ports"]}
        # A headless service leads to the pod's port, whatever its own is.
        assert all(port["port"] == ports[port["targetPort"]] for port in each["spec"]["ports"])


@pytest.mark.parametrize("name", ["draft", "target"])
def test_coordinators_find_the_pods_by_the_name_of_their_service(objects, name):
    settings = environment(objects, container(objects, "coordinator"), SECRETS)
    [port] = named(objects, "Service", name)["spec"]["ports"]
    assert settings[f"COORDINATOR_{name.upper()}_ADDRESSES"] == f"dns:///{name}:{port['port']}"


def test_what_is_scaled_has_no_number_of_pods_of_its_own(objects):
    for each in of_kind(objects, "ScaledObject"):
        scaled = named(objects, "StatefulSet", each["spec"]["scaleTargetRef"]["name"])
        assert "replicas" not in scaled["spec"], "every apply would set it back"
        assert 1 <= each["spec"]["minReplicaCount"] <= each["spec"]["maxReplicaCount"]
        [trigger] = each["spec"]["triggers"]
        assert trigger["metadata"]["ignoreNullValues"] == "false", "no numbers are not no load"


def test_coordinators_know_redis(objects):
    url = urlsplit(environment(objects, container(objects, "coordinator"), SECRETS)["COORDINATOR_REDIS_URL"])
    if services := [each for each in of_kind(objects, "Service") if each["metadata"]["name"] == url.hostname]:
        assert [port["port"] for port in services[0]["spec"]["ports"]] == [url.port]
        assert ("--tls-port" in container(objects, "redis")["command"]) is (url.scheme == "rediss")
    else:
        assert not [each for each in objects if each["metadata"]["name"].startswith("redis")]


def test_the_user_of_redis_has_the_rights_that_the_readme_names():
    [made] = pod(workload(rendered("heterogeneous-gpu"), "redis"))["initContainers"]
    assert f"`{environment((), made, SECRETS)['RIGHTS']}`" in README.read_text()


def test_disruption_budgets_cover_the_services_and_block_no_drain(objects):
    budgets = {each["metadata"]["name"]: each["spec"] for each in of_kind(objects, "PodDisruptionBudget")}
    assert budgets.keys() == SETTINGS.keys()
    for each in budgets.values():
        assert each["maxUnavailable"] == 1
        assert each["unhealthyPodEvictionPolicy"] == "AlwaysAllow"
        assert "minAvailable" not in each


def test_images_are_pinned(objects):
    version = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]["version"]
    for each in of_kind(objects, *WORKLOADS):
        for made in [*pod(each)["containers"], *pod(each).get("initContainers", [])]:
            ours = re.fullmatch(rf"specdec-(\w+):{re.escape(version)}(-cpu)?", made["image"])
            assert ours or re.fullmatch(r"[\w./-]+:[\w.-]+@sha256:[0-9a-f]{64}", made["image"])
        if each["metadata"]["name"] in SETTINGS:
            assert pod(each)["containers"][0]["image"].startswith(f"specdec-{each['metadata']['name']}:")


def secrets_made(objects):
    rendered_ones = {each["metadata"]["name"] for each in of_kind(objects, "Secret")}
    return rendered_ones | {each["spec"]["secretName"] for each in of_kind(objects, "Certificate")} | GIVEN_SECRETS


def labels_of(each):
    return each["metadata"].get("labels", {})


def references(value, found):
    """Collect the names under keys that refer to other objects, but for optional ones."""
    if isinstance(value, list):
        for each in value:
            references(each, found)
    elif isinstance(value, dict):
        for key, each in value.items():
            if key in ("configMapRef", "configMap", "configMapKeyRef"):
                found.add(("ConfigMap", each["name"]))
            elif key in ("secretRef", "secretKeyRef", "secret", "ca") and not each.get("optional"):
                found.add(("Secret", each.get("name") or each["secretName"]))
            elif key == "resourceClaimTemplateName":
                found.add(("ResourceClaimTemplate", each))
            elif key in ("issuerRef", "scaleTargetRef"):
                found.add((each["kind"], each["name"]))
            references(each, found)


def test_references_resolve(objects):
    found = set()
    references(list(objects), found)
    there = {(each["kind"], each["metadata"]["name"]) for each in objects}
    there |= {("Secret", name) for name in secrets_made(objects)}
    assert not found - there
    dashboards = {each["metadata"]["name"] for each in objects if "grafana_dashboard" in labels_of(each)}
    config = {name for kind, name in there if kind == "ConfigMap"} - dashboards
    assert config == {name for kind, name in found if kind == "ConfigMap"}, "one that nobody reads"


def test_gpus_asked_for_are_gpus_granted(objects):
    for each in of_kind(objects, *WORKLOADS):
        for made in pod(each)["containers"]:
            wanted, limit = (
                {k: v for k, v in made["resources"][kind].items() if "/" in k} for kind in ("requests", "limits")
            )
            assert wanted == limit
            claims = [claim["name"] for claim in made["resources"].get("claims", [])]
            assert claims == [claim["name"] for claim in pod(each).get("resourceClaims", [])]
            assert not (wanted and claims)
            assert {"cpu", "memory"} <= made["resources"]["requests"].keys()
            assert "memory" in made["resources"]["limits"]


def gpus(objects, name):
    """Return how many GPUs, or slices of one, a pod gets, by count or by claim."""
    limits = container(objects, name)["resources"]["limits"]
    counted = sum(value for key, value in limits.items() if "/" in key)
    for claim in pod(workload(objects, name)).get("resourceClaims", []):
        template = named(objects, "ResourceClaimTemplate", claim["resourceClaimTemplateName"])
        counted += sum(each["exactly"]["count"] for each in template["spec"]["spec"]["devices"]["requests"])
    return counted


@pytest.mark.parametrize("name", [name for name, stack in DEPLOYMENTS.items() if stack[0] != "local"])
def test_a_target_has_a_process_for_each_of_its_gpus(name):
    objects = rendered(*DEPLOYMENTS[name])
    [processes] = re.findall(r"--nproc-per-node=(\d+)", " ".join(container(objects, "target")["command"]))
    assert int(processes) == gpus(objects, "target")
    assert gpus(objects, "draft") == ("lookup-draft" not in DEPLOYMENTS[name])


def test_policies_are_for_pods_and_ports_that_are_there(objects):
    for each in of_kind(objects, "NetworkPolicy"):
        if (optional := each["metadata"]["name"]) in {"jaeger", "collector"} - pods_of(objects).keys():
            assert each["spec"]["podSelector"]["matchLabels"] == {"app.kubernetes.io/name": optional}
            continue
        served = chosen(objects, each["spec"]["podSelector"])
        assert served
        for rule in each["spec"].get("ingress", []):
            open_ports = {port["port"] for port in rule["ports"]}
            for name in served:
                ports = container(objects, name)["ports"]
                assert open_ports & {value for port in ports for value in (port["name"], port["containerPort"])}
        for rule in each["spec"].get("egress", []):
            for peer in rule.get("to", []):
                assert "podSelector" not in peer or chosen(objects, peer["podSelector"])


def test_policies_let_a_round_through():
    objects = rendered(*DEPLOYMENTS["local, closed"])
    policies = {each["metadata"]["name"]: each["spec"] for each in of_kind(objects, "NetworkPolicy")}
    assert chosen(objects, policies["specdec-nothing-else"]["podSelector"]) == pods_of(objects).keys()
    assert chosen(objects, policies["specdec-names"]["podSelector"]) == pods_of(objects).keys()
    [names] = policies["specdec-names"]["egress"]
    assert names == {"ports": [{"port": 53, "protocol": protocol} for protocol in ("UDP", "TCP")]}
    leaving = {
        name: rule["ports"][0]["port"]
        for rule in policies["coordinator"]["egress"]
        for name in chosen(objects, rule["to"][0]["podSelector"])
    }
    entering = {
        name: policies[name]["ingress"][0]["ports"][0]["port"]
        for name in leaving
        if chosen(objects, policies[name]["ingress"][0]["from"][0]["podSelector"]) == {"coordinator"}
    }
    assert leaving == entering
    assert leaving.keys() == {"draft", "target", "redis"}
