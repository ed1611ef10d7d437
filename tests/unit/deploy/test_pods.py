"""Every pod: its settings load, its probes ask for what is served, its end has its time, it can do no harm."""

import re

import pytest

from coordinator.places import name_of
from deploy.pairs import LOOKUP, PAIRS, usual_environment
from specdec.model import checkpoint
from specdec.model.checkpoint import HUB_ID, Checkpoint
from specdec.serving.server import LETTING_GO_SECONDS, LIVENESS
from specdec.serving.settings import describe
from specdec.v1 import draft_pb2, generation_pb2, target_pb2
from tests.certificates import Authority
from tests.manifests import (
    DEPLOYMENTS,
    SETTINGS,
    WORKLOADS,
    container,
    environment,
    named,
    of_kind,
    pod,
    rendered,
    workload,
)

SECRETS = {"username": "specdec", "password": "secret"}
EXPORT_SECONDS = 10  # that the last spans may take: OTEL_EXPORTER_OTLP_TIMEOUT
OTHERS_VARIABLES = re.compile(r"OTEL_[A-Z_]+|HF_(HOME|HUB_OFFLINE|TOKEN)|XDG_CACHE_HOME|POD_(NAME|NAMESPACE)")
HEALTH_NAMES = {
    name: set(messages.DESCRIPTOR.services_by_name)
    for name, messages in {"coordinator": generation_pb2, "draft": draft_pb2, "target": target_pb2}.items()
}


@pytest.fixture(params=DEPLOYMENTS)
def objects(request):
    return rendered(*DEPLOYMENTS[request.param])


@pytest.fixture(params=SETTINGS)
def service(request):
    return request.param


@pytest.fixture(scope="module")
def mounted_files(tmp_path_factory):
    """Return files to read in the place of those that components mount from secrets, by their names there."""
    folder = tmp_path_factory.mktemp("secrets")
    (folder / "tokens").write_text(f"ann:{'0' * 64}\n")
    authority = Authority(folder)
    pair = authority.issue("any")
    return {
        "ca.crt": authority.ca,
        "tls.crt": pair.certificate,
        "tls.key": pair.key,
        "tokens": str(folder / "tokens"),
    }


def spec_of(objects, service):
    return pod(workload(objects, service))


def environment_of(objects, service):
    return environment(objects, container(objects, service), SECRETS)


@pytest.fixture
def loaded(objects, service, mounted_files, monkeypatch):
    """The settings that the service would read of its container's environment; it refuses what it does not know."""
    for name, value in environment_of(objects, service).items():
        secret = value.startswith(("/tls/", "/tokens/"))
        monkeypatch.setenv(name, mounted_files[value.rpartition("/")[2]] if secret else value)
    return SETTINGS[service].load([])


def test_variables_are_those_that_the_settings_know(objects, service):
    known = {row.environment for row in describe(SETTINGS[service])}
    strangers = environment_of(objects, service).keys() - known
    assert not [name for name in strangers if not OTHERS_VARIABLES.fullmatch(name)]


def test_ports_are_those_of_the_settings(objects, service, loaded):
    ports = {port["name"]: port["containerPort"] for port in container(objects, service)["ports"]}
    assert ports == {"grpc": loaded.port, "health": loaded.health_port, "metrics": loaded.metrics_port}
    assert loaded.port == SETTINGS[service].model_fields["port"].default
    assert loaded.host == "0.0.0.0"


def test_probes_ask_the_health_port_for_a_service_that_is_there(objects, service, loaded):
    """In plaintext: the kubelet speaks no TLS."""
    made = container(objects, service)
    probes = [made[name] for name in ("startupProbe", "readinessProbe", "livenessProbe")]
    asked = [probe["grpc"] for probe in probes if "grpc" in probe]
    assert made["readinessProbe"]["grpc"] in asked
    for each in asked:
        assert each["port"] == loaded.health_port
        assert each["service"].removeprefix("specdec.v1.") in HEALTH_NAMES[service] | {LIVENESS}
    assert len(asked) == len(probes), "an open port says only that the kernel lives"


def test_a_coordinator_without_a_target_is_not_restarted(objects):
    """Its services' health says whether a target answers; what is asked of it to live must not."""
    made = container(objects, "coordinator")
    assert made["readinessProbe"]["grpc"]["service"] != LIVENESS
    assert made["livenessProbe"]["grpc"]["service"] == LIVENESS
    assert made["startupProbe"]["grpc"]["service"] == LIVENESS


def test_a_coordinators_rollout_may_wait_for_a_target_to_load(objects):
    """By itself Kubernetes gives one up after ten minutes."""
    probe = container(objects, "target")["startupProbe"]
    deadline = workload(objects, "coordinator")["spec"]["progressDeadlineSeconds"]
    assert deadline >= probe["periodSeconds"] * probe["failureThreshold"] + 600, "and to be fetched"


@pytest.mark.parametrize("name", ["draft", "target"])
def test_a_model_gets_half_an_hour_to_load(objects, name):
    probe = container(objects, name)["startupProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] >= 1800


def test_the_end_takes_no_longer_than_the_grace(objects, service, loaded):
    spec, made = spec_of(objects, service), container(objects, service)
    before = made.get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
    needed = before + loaded.drain_seconds + LETTING_GO_SECONDS + EXPORT_SECONDS
    assert spec["terminationGracePeriodSeconds"] >= needed
    for limit in re.findall(r"--shutdown-timeout=(\d+)", " ".join(made.get("command", []))):
        assert needed <= int(limit) < spec["terminationGracePeriodSeconds"]


def test_calls_stop_coming_to_a_coordinator_before_it_ends(objects):
    assert container(objects, "coordinator")["lifecycle"]["preStop"]["sleep"]["seconds"] >= 5


def pods(objects):
    return [pod(each) for each in of_kind(objects, *WORKLOADS)]


def test_pods_keep_the_restricted_standard(objects):
    for spec in pods(objects):
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["runAsUser"] > 0
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert spec["automountServiceAccountToken"] is False
        assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()
        assert not [volume for volume in spec["volumes"] if "hostPath" in volume]
        for made in [*spec["containers"], *spec.get("initContainers", [])]:
            assert made["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }


def test_service_links_are_off(objects):
    """They would set DRAFT_PORT, which is a setting, to an address."""
    assert all(spec["enableServiceLinks"] is False for spec in pods(objects))


def test_what_is_mounted_is_there_and_what_is_there_is_mounted(objects):
    for each in of_kind(objects, *WORKLOADS):
        claims = [claim["metadata"]["name"] for claim in each["spec"].get("volumeClaimTemplates", [])]
        volumes = [volume["name"] for volume in pod(each)["volumes"]] + claims
        made = [*pod(each)["containers"], *pod(each).get("initContainers", [])]
        mounts = {mount["name"] for one in made for mount in one["volumeMounts"]}
        assert mounts == set(volumes)
        assert len(set(volumes)) == len(volumes)


def test_paths_of_the_settings_lie_on_volumes(objects, service):
    made = container(objects, service)
    mounted = {mount["mountPath"]: mount for mount in made["volumeMounts"]}
    assert not mounted["/tmp"].get("readOnly"), "what a read-only root leaves to write to"
    settings = environment_of(objects, service)
    without_weights = settings.get("DRAFT_MODEL") == LOOKUP
    assert ("/models" in mounted and mounted["/models"]["readOnly"]) is not without_weights
    for value in settings.values():
        if value.startswith("/") and not (without_weights and value.startswith("/models")):
            assert [path for path in mounted if value == path or value.startswith(f"{path}/")], value


def test_certificates_lie_where_the_settings_look(objects, service):
    """And draft and target see no key of an authority."""
    mounted = {mount["mountPath"]: mount["name"] for mount in container(objects, service)["volumeMounts"]}
    volumes = {volume["name"]: volume.get("secret") for volume in spec_of(objects, service)["volumes"]}
    made = {each["spec"]["secretName"]: each["spec"] for each in of_kind(objects, "Certificate")}
    for value in environment_of(objects, service).values():
        if value.startswith("/tls/"):
            folder, _, file = value.rpartition("/")
            secret = volumes[mounted[folder]]
            files = [item["path"] for item in secret.get("items", [])] or ["ca.crt", "tls.crt", "tls.key"]
            assert file in files
            assert ("tls.key" in files) is not made[secret["secretName"]].get("isCA", False)


def test_model_servers_show_the_names_that_coordinators_find_them_by():
    objects = rendered(*DEPLOYMENTS["local, closed"])
    settings = environment_of(objects, "coordinator")
    hosts = [name_of(settings[f"COORDINATOR_{name}_ADDRESSES"]) for name in ("DRAFT", "TARGET")]
    assert named(objects, "Certificate", "model-server")["spec"]["dnsNames"] == hosts
    assert "COORDINATOR_PEER_TLS_NAME" not in settings


def test_draft_and_coordinator_would_rather_be_near_the_target(objects):
    for name in ("draft", "coordinator"):
        affinity = spec_of(objects, name)["affinity"]["podAffinity"]
        assert affinity.keys() == {"preferredDuringSchedulingIgnoredDuringExecution"}, "required would block scaling"
        [preferred] = affinity["preferredDuringSchedulingIgnoredDuringExecution"]
        assert preferred["podAffinityTerm"]["topologyKey"] == "topology.kubernetes.io/zone"
        near = preferred["podAffinityTerm"]["labelSelector"]["matchLabels"]
        assert near.items() <= workload(objects, "target")["spec"]["template"]["metadata"]["labels"].items()


@pytest.mark.parametrize("name", ["draft", "target"])
def test_weights_are_fetched_before_the_start_and_never_after(objects, name):
    model = environment_of(objects, name)[f"{name.upper()}_MODEL"]
    if model == LOOKUP:
        assert "initContainers" not in spec_of(objects, name)
        return
    [fetching] = spec_of(objects, name)["initContainers"]
    assert fetching["command"] == ["python", "-m", "specdec.model.checkpoint"]
    assert fetching["args"] == [f"$({name.upper()}_MODEL)"]
    assert fetching["image"] == container(objects, name)["image"]
    assert environment(objects, fetching)[f"{name.upper()}_MODEL"] == model
    where = {"HF_HOME", "XDG_CACHE_HOME"}
    serving = environment_of(objects, name)
    assert {key: serving[key] for key in where} == {key: environment(objects, fetching)[key] for key in where}
    assert serving["HF_HUB_OFFLINE"] == "1"
    assert "HF_HUB_OFFLINE" not in environment(objects, fetching)


SMALL = "Qwen/Qwen3-0.6B@c1899de289a04d12100db370d81485cdf75e47ca"


@pytest.mark.parametrize(
    ("overlay", "said", "fetched"),
    [
        ("local", ["DRAFT_MODEL=lookup:"], []),
        ("local", ["DRAFT_MODEL=lookup:layers:26:embedded:smollm2"], ["embedded:smollm2"]),
        ("heterogeneous-gpu", [f"DRAFT_MODEL=lookup:{SMALL}", "DRAFT_AHEAD_TOKENS=0"], [SMALL]),
    ],
)
def test_a_lookup_as_draft_is_a_setting(monkeypatch, tmp_path, overlay, said, fetched):
    """Its init container fetches the model behind it, if there is one, and the service takes its settings."""
    objects, asked = rendered(overlay, draft=tuple(said)), []
    [fetching] = spec_of(objects, "draft")["initContainers"]
    monkeypatch.setattr(checkpoint, "find_checkpoint", lambda name: asked.append(name) or Checkpoint(tmp_path, ""))
    assert checkpoint.main([environment(objects, fetching)["DRAFT_MODEL"]]) == 0
    assert asked == fetched
    for name, value in environment_of(objects, "draft").items():
        monkeypatch.setenv(name, value)
    assert f"DRAFT_MODEL={SETTINGS['draft'].load([]).model}" == said[0]


@pytest.mark.parametrize("name", ["draft", "target"])
def test_weights_of_a_hub_have_memory_to_come_through(name):
    """Its transfer library buffers by gigabytes: a tighter limit ends the init container, again and again."""
    [fetching] = spec_of(rendered("heterogeneous-gpu"), name)["initContainers"]
    assert int(fetching["resources"]["limits"]["memory"].removesuffix("Gi")) >= 8


@pytest.mark.parametrize("deployment", [name for name, stack in DEPLOYMENTS.items() if stack[0] != "local"])
def test_models_of_a_hub_are_pinned_to_a_commit(deployment):
    objects = rendered(*DEPLOYMENTS[deployment])
    models = {name: environment_of(objects, name)[f"{name.upper()}_MODEL"] for name in ("draft", "target")}
    for model in set(models.values()) - {LOOKUP}:
        assert re.fullmatch(r"[0-9a-f]{40}", HUB_ID.fullmatch(model)["revision"])
    assert environment_of(objects, "coordinator")["COORDINATOR_TOKENIZER"] == models["target"]


def test_the_laptops_pair_is_the_default_one():
    objects, pair = rendered("local"), PAIRS["smollm2"]
    said = environment_of(objects, "draft") | environment_of(objects, "target")
    assert said.items() >= ({"DRAFT_MODEL": pair.draft, "TARGET_MODEL": pair.target} | usual_environment(pair)).items()


def test_the_laptops_coordinator_unpacks_the_tokenizer_of_whatever_the_target_serves():
    objects = rendered("local", target=("TARGET_MODEL=owner/name",))
    [fetching] = spec_of(objects, "coordinator")["initContainers"]
    assert fetching["command"] == ["python", "-m", "specdec.model.checkpoint"]
    assert fetching["args"] == ["$(TARGET_MODEL)"]
    fetched, served = environment(objects, fetching), environment_of(objects, "target")
    assert all(fetched[name] == served[name] for name in ("TARGET_MODEL", "HF_HOME", "XDG_CACHE_HOME"))
