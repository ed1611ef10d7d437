"""What an operator's own manifests say wrongly of the services, found before they are applied.

``kubectl kustomize FOLDER | python -m deploy.check_manifests`` prints it, a line each, and fails where there is any.
"""

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml  # type: ignore[import-untyped]

from coordinator.settings import CoordinatorSettings
from draft_service.settings import DraftSettings
from specdec.serving.settings import ServiceSettings, describe
from target_service.settings import TargetSettings

Object = Mapping[str, Any]
SERVICES: Mapping[str, type[ServiceSettings]] = {
    "coordinator": CoordinatorSettings,
    "draft": DraftSettings,
    "target": TargetSettings,
}
PREFIXES = tuple(f"{name.upper()}_" for name in SERVICES)
UNPINNED = re.compile(r"(.+:)?[\w.-]+/[\w.-]+")  # a hub's id without its @commit


def complaints(objects: Sequence[Object]) -> list[str]:
    """Return what is wrong with the rendered objects of a deployment, a line each."""
    config = {each["metadata"]["name"]: each.get("data", {}) for each in objects if each["kind"] == "ConfigMap"}
    scaled = {each["spec"]["scaleTargetRef"]["name"] for each in objects if each["kind"] == "ScaledObject"}
    workloads = {
        each["metadata"]["name"]: each["spec"] for each in objects if each["kind"] in ("Deployment", "StatefulSet")
    }
    found = [f"{name} is not there" for name in SERVICES if name not in workloads]
    for name in SERVICES.keys() & workloads.keys():
        spec = workloads[name]
        containers = {each["name"]: each for each in spec["template"]["spec"]["containers"]}
        lines = [*_of_settings(name, _environment(containers[name], config)), *_of_gpus(containers[name])]
        if name in scaled and "replicas" in spec:
            lines.append("each apply sets the number of pods back, which is KEDA's: leave `replicas` out")
        found += [f"{name}: {line}" for line in lines]
    return sorted(found)


def _environment(container: Object, config: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    found: dict[str, str] = {}
    for source in container.get("envFrom", []):
        found |= config.get(source.get("configMapRef", {}).get("name"), {})
    return found | {each["name"]: each.get("value", "") for each in container.get("env", [])}


def _of_settings(name: str, environment: Mapping[str, str]) -> Iterator[str]:
    known = {row.environment for row in describe(SERVICES[name])}
    for variable in environment:
        if variable.startswith(PREFIXES) and variable not in known:
            yield f"no setting is called {variable}"
    for variable in ("DRAFT_MODEL", "TARGET_MODEL", "COORDINATOR_TOKENIZER"):
        if UNPINNED.fullmatch(model := environment.get(variable, "")):
            yield f"{variable}={model} has no @commit: pods may come to serve different ones"


def _of_gpus(container: Object) -> Iterator[str]:
    """Compare processes with whole GPUs; slices and claims are not counted."""
    gpus = container["resources"].get("limits", {}).get("nvidia.com/gpu")
    told = re.search(r"--nproc-per-node=(\d+)", " ".join(container.get("command", [])))
    processes = told[1] if told else "1"
    if gpus is not None and str(gpus) != processes:
        yield f"processes and GPUs are not alike: {processes} and {gpus}"


def main() -> int:
    """Check what comes in on stdin; return the exit status."""
    found = complaints([each for each in yaml.safe_load_all(sys.stdin) if each])
    for line in found:
        print(line)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
