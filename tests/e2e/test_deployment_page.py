"""Every command of deploy/README.md is run here, as far as a machine without a cluster can, or its reason given."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.manifests import GIVEN_SECRETS, KUBERNETES, rendered

PAGE = KUBERNETES.parent / "README.md"
BIN = Path(sys.executable).parent
SECONDS = 60
NO_CLUSTER, NO_DOCKER = "needs a cluster", "needs a Docker engine"
# The beginnings of what cannot be run here.
NOT_RUN = {
    "docker build --file deploy/Dockerfile --target ": NO_DOCKER,
    "docker compose --file deploy/compose.yaml ": NO_DOCKER,
    "for name in coordinator draft target; do docker ": NO_DOCKER,
    "kind create cluster ": NO_DOCKER,
    "kind load docker-image ": NO_DOCKER,
    "kubectl label namespace ": NO_CLUSTER,
    "kubectl config set-context --current ": "changes whoever runs the tests",
    "kubectl patch serviceaccount ": NO_CLUSTER,
    "kubectl rollout status ": NO_CLUSTER,
    "kubectl port-forward service/": NO_CLUSTER,
    "kubectl get secret coordinator-tls ": NO_CLUSTER,
    "curl ": "needs a Jaeger",
    "grpcurl -cacert ": "run by test_readme.py, where the same doors are closed",
}


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)


COMMANDS = [line for block in blocks("sh") for line in block.splitlines()]
CREATED = [command for command in COMMANDS if command.startswith(("kubectl create ", "TOKEN="))]
APPLIED = [command for command in COMMANDS if command.startswith("kubectl apply -k ")]
CHECKS = [command for command in COMMANDS if command.startswith("kubectl kustomize ")]
PLANS = [command for command in COMMANDS if command.startswith("python -m benchmarks.plan ")]
CALLS = [command for command in COMMANDS if command.startswith("grpcurl -plaintext ")]


def bash(command, **variables):
    environment = os.environ | {"PATH": f"{BIN}:{os.environ['PATH']}"} | variables
    done = subprocess.run(["bash", "-c", command], env=environment, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_command_is_run_or_its_reason_given():
    excused = [command for command in COMMANDS if command.startswith(tuple(NOT_RUN))]
    assert sorted(COMMANDS) == sorted([*excused, *CREATED, *APPLIED, *CHECKS, *PLANS, *CALLS])
    assert all(any(command.startswith(begin) for command in excused) for begin in NOT_RUN)


def test_secrets_are_those_that_the_manifests_read():
    script = "\n".join(
        f"{command} --dry-run=client -o yaml; echo ---" if command.startswith("kubectl ") else command
        for command in CREATED
    )
    given = {"HF_TOKEN": "given", "REGISTRY_USER": "given", "REGISTRY_TOKEN": "given"}
    made = [each for each in yaml.safe_load_all(bash(script, **given)) if each]
    secrets = {each["metadata"]["name"]: set(each["data"]) for each in made if each["kind"] == "Secret"}
    assert secrets.pop("registry") == {".dockerconfigjson"}
    assert '"imagePullSecrets": [{"name": "registry"}]' in PAGE.read_text()
    assert secrets == {"redis-user": {"username", "password"}, "client-tokens": {"tokens"}, "hub-token": {"token"}}
    assert secrets.keys() >= GIVEN_SECRETS


def test_folders_that_are_applied_are_there():
    """What the second holds is rendered by test_manifests_page.py."""
    folders = [command.removeprefix("kubectl apply -k ") for command in APPLIED]
    assert folders[0] == "deploy/kubernetes/overlays/local"
    assert rendered("local")
    assert f"and `{folders[1]}/kustomization.yaml`" in PAGE.read_text()
    assert f"`{folders[1]}/system/kustomization.yaml`" in PAGE.read_text()


def test_the_check_is_made():
    [command] = CHECKS
    assert bash(command.replace("my-specdec", str(KUBERNETES / "overlays" / "local"))) == ""


def test_the_table_names_every_component():
    table = re.search(r"^## Components\n(.*?)^## ", PAGE.read_text(), re.MULTILINE | re.DOTALL)[1]
    named = re.findall(r"^\| `([\w-]+)` \|", table, re.MULTILINE)
    assert sorted(named) == sorted(folder.name for folder in (KUBERNETES / "components").iterdir())


def test_the_plan_is_made():
    [command] = PLANS
    assert '"best"' in bash(command)


@pytest.mark.parametrize("command", CALLS)
def test_calls_are_answered(system, command):
    assert bash(command.replace("localhost:50051", system.address("coordinator"))).strip()
