"""Where and with what a measurement was made: machine, versions, commit, settings from the environment."""

import importlib.metadata
import os
import platform
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
import torch

from specdec.serving import telemetry

PACKAGES = ("torch", "transformers", "grpcio", "uvloop", "redis")
SETTINGS = ("TARGET_", "DRAFT_", "COORDINATOR_", "OMP_", "MKL_", "GOMP_", "KMP_", "CUDA_VISIBLE_DEVICES", "OTEL_")
CPU_INFO = Path("/proc/cpuinfo")


def surroundings(module: str, arguments: list[str]) -> dict[str, Any]:
    """Say where and with what a measurement begins now.

    Args:
        module: the benchmark's, as ``python -m`` takes it.
        arguments: of its command line.
    """
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join(["python", "-m", module, *arguments]),
        "commit": commit(),
        "machine": machine(),
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in PACKAGES}},
        "tracing": tracing(),
        "environment": {name: value for name, value in sorted(os.environ.items()) if name.startswith(SETTINGS)},
    }


def in_words(report: dict[str, Any]) -> str:
    """Say in a paragraph where and with what a report was made, from its JSON."""
    machine = report["machine"]
    gpus = ", ".join(machine["gpus"]) or "no GPU"
    versions = ", ".join(f"{name} {version}" for name, version in report["versions"].items())
    environment = ", ".join(f"`{name}={value}`" for name, value in report["environment"].items())
    return (
        f"{report['date']}, commit {report['commit'] or 'unknown'}, `{report['command']}`, {report['seconds']:.0f} s. "
        f"{machine['cpu']}, {machine['cores']} cores ({machine['logical_cores']} logical), "
        f"{machine['memory_gib']:.1f} GiB, {gpus}; load average {machine['load_average']:.1f} before the start. "
        f"{versions}. Tracing: {report['tracing']}." + (f" Environment: {environment}." if environment else "")
    )


def tracing() -> str:
    """Say what becomes of spans in the processes that this one starts."""
    if os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return "off"
    sampler = os.environ.get("OTEL_TRACES_SAMPLER", "parentbased_always_on")
    return f"spans sampled by {sampler}, exported {'over OTLP' if telemetry.wants_export() else 'nowhere'}"


def usable_cores() -> int:
    """Return how many cores this process may use: siblings of one core count once."""
    return min(psutil.cpu_count(logical=False) or sys.maxsize, _logical_cores())


def machine() -> dict[str, Any]:
    """Describe the machine; load_average is that of the last minute and shows whether it was quiet."""
    return {
        "cpu": _cpu_model(),
        "cores": usable_cores(),
        "logical_cores": _logical_cores(),
        "memory_gib": psutil.virtual_memory().total / 2**30,
        "gpus": [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())],
        "system": platform.platform(),
        "load_average": os.getloadavg()[0],
    }


def commit() -> str:
    """Return the checkout's commit, with "+changes" where tracked files differ; empty outside a checkout."""
    here = str(Path(__file__).parent)
    describe = ["git", "-C", here, "describe", "--always", "--abbrev=12", "--exclude=*", "--dirty=+changes"]
    try:
        return subprocess.run(describe, check=True, capture_output=True, text=True).stdout.strip()
    except (FileNotFoundError, subprocess.CalledProcessError):
        return ""


def _logical_cores() -> int:
    """Return how many processors this process may use; where the system cannot say, all there are."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _cpu_model() -> str:
    lines = CPU_INFO.read_text().splitlines() if CPU_INFO.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _version(package: str) -> str:
    return importlib.metadata.version(package)
