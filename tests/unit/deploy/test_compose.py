"""compose.yaml: what its services say of each other, of the settings, of the images and of the files it mounts."""

import json
import re
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml

from coordinator.places import name_of
from deploy.pairs import DEFAULT_PAIR, PAIRS, usual_environment
from specdec.serving.server import LETTING_GO_SECONDS
from specdec.serving.settings import describe
from tests.manifests import KUBERNETES, SETTINGS

DEPLOY = KUBERNETES.parent
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
DOCKERFILE = (DEPLOY / "Dockerfile").read_text()
SERVICES = COMPOSE["services"]
PROMETHEUS = yaml.safe_load((DEPLOY / "observability" / "prometheus.yaml").read_text())
OTHERS_VARIABLES = re.compile(r"OTEL_[A-Z_]+|HF_(HOME|HUB_OFFLINE)|XDG_CACHE_HOME")
EXPORT_SECONDS = 10  # that the last spans may take: OTEL_EXPORTER_OTLP_TIMEOUT
# Of the Compose specification, what is used: a misspelt key is none of them.
KEYS = {
    *("build", "cap_drop", "command", "depends_on", "entrypoint", "environment", "healthcheck", "image", "mem_limit"),
    *("ports", "read_only", "security_opt", "stop_grace_period", "tmpfs", "user", "volumes"),
}


@pytest.fixture(params=SETTINGS)
def service(request):
    return request.param


@pytest.fixture
def loaded(service, monkeypatch):
    """The settings that a service would read of its environment."""
    for name, value in SERVICES[service]["environment"].items():
        monkeypatch.setenv(name, value)
    return SETTINGS[service].load([])


def mounts(made):
    """Return what is mounted from where, by the path inside."""
    parts = [volume.split(":") for volume in made.get("volumes", [])]
    return {inside: source for source, inside, *_ in parts}


def test_services_are_made_of_keys_that_compose_knows():
    assert set(COMPOSE) == {"name", "services", "secrets", "volumes", "x-hardened", "x-service", "x-environment"}
    for made in SERVICES.values():
        assert not made.keys() - KEYS
        assert all(isinstance(value, str) for value in made.get("environment", {}).values())
        assert not made.get("depends_on", {}).keys() - SERVICES.keys()
        assert made["read_only"] is True
        assert made["cap_drop"] == ["ALL"]


def test_images_are_those_of_the_manifests_or_pinned_likewise():
    pinned = "".join(path.read_text() for path in KUBERNETES.rglob("kustomization.yaml"))
    [version] = re.findall(r'image\.version="([\d.]+)"', DOCKERFILE)
    targets = re.findall(r"^FROM \S+ AS (\S+)", DOCKERFILE, re.MULTILINE)
    for name, made in SERVICES.items():
        if build := made.get("build"):
            assert build["target"] in targets
            assert build.get("args", {}) == ({} if build["target"] == "coordinator" else {"TORCH": "cpu"})
            assert made["image"] == f"specdec-{build['target']}:{'-'.join([version, *build.get('args', {}).values()])}"
            assert (DEPLOY / build["context"] / build["dockerfile"]).is_file()
            continue
        image, tag, digest = re.fullmatch(r"([\w./-]+):([\w.-]+)@(sha256:[0-9a-f]{64})", made["image"]).groups()
        if name not in ("prometheus", "grafana"):
            assert re.search(rf"name: {image}\n +newTag: {re.escape(tag)}\n +digest: {digest}\n", pinned)


def test_variables_are_those_that_the_settings_know(service, loaded):
    known = {row.environment for row in describe(SETTINGS[service])}
    strangers = SERVICES[service]["environment"].keys() - known
    assert not [name for name in strangers if not OTHERS_VARIABLES.fullmatch(name)]
    assert loaded.host == "0.0.0.0"
    assert loaded.port == SETTINGS[service].model_fields["port"].default


def test_the_end_takes_no_longer_than_the_grace(service, loaded):
    needed = loaded.drain_seconds + LETTING_GO_SECONDS + EXPORT_SECONDS
    assert int(SERVICES[service]["stop_grace_period"].removesuffix("s")) >= needed


def test_prometheus_scrapes_the_ports_for_metrics(service, loaded):
    [job] = [each for each in PROMETHEUS["scrape_configs"] if each["job_name"] == service]
    [group] = job["static_configs"]
    assert group["targets"] == [f"{service}:{loaded.metrics_port}"]
    assert group["labels"].keys() == {"namespace", "pod"}
    assert len(PROMETHEUS["scrape_configs"]) == len(SETTINGS)
    assert PROMETHEUS.keys() == {"global", "rule_files", "scrape_configs"}


@pytest.mark.parametrize("name", ["draft", "target"])
def test_the_coordinator_finds_its_peers_and_redis(name):
    said = SERVICES["coordinator"]["environment"]
    port = SETTINGS[name].model_fields["port"].default
    assert said[f"COORDINATOR_{name.upper()}_ADDRESSES"] == f"dns:///{name}:{port}"
    assert name_of(said[f"COORDINATOR_{name.upper()}_ADDRESSES"]) in SERVICES
    assert urlsplit(said["COORDINATOR_REDIS_URL"]).hostname in SERVICES


def test_the_pair_is_the_default_one_with_its_usual_settings():
    pair = PAIRS[DEFAULT_PAIR]
    wanted = {"TARGET_MODEL": pair.target, "DRAFT_MODEL": pair.draft} | usual_environment(pair)
    said = SERVICES["target"]["environment"] | SERVICES["draft"]["environment"]
    assert wanted.items() <= said.items()
    unpacking = SERVICES["weights"]
    assert unpacking["entrypoint"] == ["python", "-m", "specdec.model.checkpoint"]
    assert unpacking["command"] == [pair.target]


def test_weights_are_written_by_one_service_and_read_by_the_others():
    writers = [name for name, made in SERVICES.items() if "models:/models" in made.get("volumes", [])]
    assert writers == ["weights"]
    assert "user" not in SERVICES["weights"], "the image's, to whom a new volume belongs"
    assert "--owner=10001 --group=10001 /models" in DOCKERFILE
    for name in SETTINGS:
        assert "models:/models:ro" in SERVICES[name]["volumes"]
        assert SERVICES[name]["depends_on"]["weights"] == {"condition": "service_completed_successfully"}
        assert SERVICES[name]["environment"].items() >= SERVICES["weights"]["environment"].items()


def test_nothing_is_reached_from_outside_of_the_machine():
    published = [port for made in SERVICES.values() for port in made.get("ports", [])]
    assert len(published) == 4
    assert all(re.fullmatch(r"127\.0\.0\.1:(\d+):\1", port) for port in published)


def test_what_is_mounted_is_there():
    volumes = set()
    for made in SERVICES.values():
        for source in mounts(made).values():
            if source.startswith("."):
                assert (DEPLOY / source).is_file()
            else:
                volumes.add(source)
    assert volumes == COMPOSE["volumes"].keys()


def test_configurations_name_files_that_are_mounted():
    for name in ("collector", "prometheus"):
        [config] = re.findall(r"--config(?:\.file)?=(\S+?)['\"]", json.dumps(SERVICES[name]["command"]))
        assert config in mounts(SERVICES[name])
    rules = [f"/etc/prometheus/{each}" for each in PROMETHEUS["rule_files"]]
    assert set(rules) <= mounts(SERVICES["prometheus"]).keys()
    grafana = DEPLOY / "observability" / "grafana"
    [provider] = yaml.safe_load((grafana / "dashboards.yaml").read_text())["providers"]
    home = Path(SERVICES["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    assert str(home) in mounts(SERVICES["grafana"])
    assert str(home.parent) == provider["options"]["path"]


def test_spans_metrics_and_pages_are_found_by_name():
    for name in SETTINGS:
        assert SERVICES[name]["environment"]["OTEL_EXPORTER_OTLP_ENDPOINT"] == "http://collector:4317"
    collector = (DEPLOY / mounts(SERVICES["collector"])["/etc/collector/collector.yaml"]).read_text()
    assert set(re.findall(r"\$\{env:(\w+)\}", collector)) == SERVICES["collector"]["environment"].keys()
    assert SERVICES["collector"]["environment"]["TRACES_ENDPOINT"] == "jaeger:4317"
    sources = yaml.safe_load((DEPLOY / "observability" / "grafana" / "datasources.yaml").read_text())["datasources"]
    for source in sources:
        url = urlsplit(source["url"])
        assert f"127.0.0.1:{url.port}:{url.port}" in SERVICES[url.hostname]["ports"]
