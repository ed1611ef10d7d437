"""The manifests as kustomize renders them, and the questions that tests ask of them."""

import os
import re
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from coordinator.settings import CoordinatorSettings
from draft_service.settings import DraftSettings
from target_service.settings import TargetSettings

KUBECTL = Path(sys.executable).with_name("kubectl")
KUBERNETES = Path(__file__).parents[1] / "deploy" / "kubernetes"
SETTINGS = {"coordinator": CoordinatorSettings, "draft": DraftSettings, "target": TargetSettings}
# What is checked: the overlays alone, and with every component somewhere.
DEPLOYMENTS = {
    "local": ("local",),
    "heterogeneous-gpu": ("heterogeneous-gpu",),
    "dra": ("dra",),
    "local, closed": ("local", "tls", "tokens", "network-policy"),
    "local, watched": ("local", "collector", "monitoring", "network-policy"),
    "by product, closed and scaled": (
        "heterogeneous-gpu",
        "tls",
        "redis-tls",
        "keda",
        "monitoring",
        "network-policy",
        "gpu-products",
    ),
    "on a slice, with a Redis of one's own": ("heterogeneous-gpu", "own-redis", "draft-on-mig"),
    "without a drafting model": ("heterogeneous-gpu", "tls", "lookup-draft"),
}
GIVEN_SECRETS = {"redis-user", "client-tokens"}  # the operator makes them
WORKLOADS = ("Deployment", "StatefulSet")

Object = dict[str, Any]


def kustomize(folder: Path) -> str:
    """Render a folder."""
    assert KUBECTL.is_file(), f"{KUBECTL} is missing: run `make setup`"
    done = subprocess.run([KUBECTL, "kustomize", str(folder)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert not done.stderr, "kustomize warns"
    return done.stdout


@cache
def rendered(overlay: str, *components: str, **settings: tuple[str, ...]) -> tuple[Object, ...]:
    """Return the objects of an overlay as an operator puts them together.

    Args:
        overlay: what stands below.
        components: what is put on top, in this order.
        settings: by ConfigMap, lines of NAME=VALUE in the place of the overlay's and the components'.
    """
    with tempfile.TemporaryDirectory() as folder:
        top, system = Path(folder), Path(folder) / "system"
        system.mkdir()
        base = os.path.relpath(KUBERNETES, system.resolve())
        stack = {
            "resources": [f"{base}/overlays/{overlay}"],
            "components": [f"{base}/components/{name}" for name in components],
        }
        changes = [{"name": name, "behavior": "merge", "literals": [*lines]} for name, lines in settings.items()]
        (system / "kustomization.yaml").write_text(yaml.safe_dump(stack))
        (top / "kustomization.yaml").write_text(
            yaml.safe_dump({"resources": ["system"], "configMapGenerator": changes})
        )
        return tuple(yaml.safe_load_all(kustomize(top)))


def of_kind(objects: tuple[Object, ...], *kinds: str) -> list[Object]:
    return [each for each in objects if each["kind"] in kinds]


def named(objects: tuple[Object, ...], kind: str, name: str) -> Object:
    [found] = [each for each in of_kind(objects, kind) if each["metadata"]["name"] == name]
    return found


def workload(objects: tuple[Object, ...], name: str) -> Object:
    [found] = [each for each in of_kind(objects, *WORKLOADS) if each["metadata"]["name"] == name]
    return found


def pod(workload: Object) -> Object:
    return workload["spec"]["template"]["spec"]


def container(objects: tuple[Object, ...], name: str) -> Object:
    """Return the one container of a service."""
    [found] = pod(workload(objects, name))["containers"]
    return found


def environment(
    objects: tuple[Object, ...], container: Object, secrets: dict[str, str] | None = None
) -> dict[str, str]:
    """Return what the kubelet would set: later entries win, and $(NAME) is what was set before.

    Args:
        objects: of the deployment.
        container: whose environment is asked for.
        secrets: values of keys that no rendered Secret has.
    """
    found: dict[str, str] = {}
    for source in container.get("envFrom", []):
        found |= named(objects, "ConfigMap", source["configMapRef"]["name"])["data"]
    for entry in container.get("env", []):
        value = entry.get("value")
        if value is None:
            value = _value_from(entry["valueFrom"], secrets or {})
        if value is not None:
            found[entry["name"]] = re.sub(r"\$\((\w+)\)", lambda match: found[match[1]], value)
    return found


def _value_from(source: Object, secrets: dict[str, str]) -> str | None:
    if "fieldRef" in source:
        return source["fieldRef"]["fieldPath"]
    reference = source["secretKeyRef"]
    return secrets.get(reference["key"]) if reference.get("optional") else secrets[reference["key"]]
