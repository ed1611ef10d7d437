"""The Dockerfile: linted, pinned, unprivileged, and in step with the services it builds."""

import ast
import json
import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from coordinator.settings import CoordinatorSettings
from draft_service.settings import DraftSettings
from target_service.settings import TargetSettings

ROOT = Path(__file__).parents[3]
DOCKERFILE = (ROOT / "deploy" / "Dockerfile").read_text()
HADOLINT = Path(sys.executable).with_name("hadolint")
SERVICES = {"coordinator": CoordinatorSettings, "draft": DraftSettings, "target": TargetSettings}


def instructions(text):
    """Return the instructions with their arguments, each on one line."""
    joined = re.sub(r"\\\n\s*", "", re.sub(r"^#.*\n", "", text, flags=re.MULTILINE))
    return [tuple(line.split(maxsplit=1)) for line in joined.splitlines() if line]


def stages(torch):
    """Return each stage's instructions by its name, its FROM first, for one value of TORCH."""
    found = {}
    for name, argument in instructions(DOCKERFILE.replace("${TORCH}", torch)):
        if name == "FROM":
            stage = found.setdefault(argument.split(" AS ")[1], [])
        elif not found:  # what stands before all stages
            assert (name, argument) == ("ARG", "TORCH=cuda")
            continue
        stage.append((name, argument))
    return found


STAGES = stages("cuda")


def lineage(stage, stages=STAGES):
    """Return a stage's instructions after those of all it stands on."""
    base = stages[stage][0][1].split(" AS ")[0]
    return (lineage(base, stages) if base in stages else []) + stages[stage]


def last(stage, name):
    return [argument for each, argument in lineage(stage) if each == name][-1]


def lint(text):
    done = subprocess.run([HADOLINT, "-"], input=text, capture_output=True, text=True, timeout=60)
    return done.stdout + done.stderr


def test_hadolint_finds_nothing():
    assert lint(DOCKERFILE) == ""


def test_hadolint_would_find_a_floating_base_and_a_shell_entry_point():
    found = lint("FROM python:latest\nENTRYPOINT python -m coordinator\n")
    assert "DL3007" in found
    assert "DL3025" in found


def test_what_comes_from_outside_is_pinned_by_its_digest():
    sources = [instructions[0][1].split(" AS ")[0] for instructions in STAGES.values()]
    copied = re.findall(r"--from=(\S+)", DOCKERFILE)
    outside = {source for source in [*sources, *copied] if source not in STAGES}
    assert outside
    assert not [source for source in outside if not re.fullmatch(r"[\w./-]+:[\w.-]+@sha256:[0-9a-f]{64}", source)]


@pytest.mark.parametrize("target", SERVICES)
def test_an_image_runs_its_service_as_nobody_in_particular(target):
    settings = SERVICES[target]
    entry_point = json.loads(last(target, "ENTRYPOINT"))
    assert entry_point == ["python", "-m", settings.__module__.partition(".")[0]]
    assert (ROOT / entry_point[-1] / "__main__.py").is_file()
    assert int(last(target, "EXPOSE")) == settings.model_fields["port"].default
    assert last(target, "USER") == "10001:10001"
    assert last(target, "USER").split(":")[0] in last(target, "RUN")  # useradd


@pytest.mark.parametrize("target", SERVICES)
def test_an_image_says_what_it_is(target):
    labels = " ".join(argument for name, argument in lineage(target) if name == "LABEL")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert f'image.version="{project["version"]}"' in labels
    assert f'image.licenses="{project["license"]}"' in labels
    assert f'image.title="specdec-{target}"' in labels
    assert "image.description=" in labels


@pytest.mark.parametrize("torch", ["cuda", "cpu"])
@pytest.mark.parametrize("target", SERVICES)
def test_an_image_has_the_packages_it_needs(target, torch):
    """The coordinator's come without torch; the others' with the build they are for."""
    built = stages(torch)
    [origin] = re.findall(r"--from=(\S+) /opt/venv", " ".join(argument for _, argument in lineage(target, built)))
    installs = " ".join(argument for name, argument in lineage(origin, built) if name == "RUN")
    assert ("torch" in installs) is (target != "coordinator")
    assert ("assert torch.version.cuda" in installs) is (target != "coordinator" and torch == "cuda")
    assert ("assert not torch.version.cuda" in installs) is (target != "coordinator" and torch == "cpu")


def test_what_is_copied_is_there_and_not_ignored():
    copied = [argument.split()[0] for name, argument in instructions(DOCKERFILE) if name == "COPY"]
    here = {source for source in copied if not source.startswith("--")}
    let_in = {line.removeprefix("!") for line in (ROOT / ".dockerignore").read_text().splitlines() if line[0] == "!"}
    assert here == let_in
    assert not [source for source in here if not (ROOT / source).exists()]


def pins(name):
    """Return what a lock pins, by package: its version and hashes."""
    blocks = re.split(r"^(?=[a-z])", (ROOT / "requirements" / name).read_text(), flags=re.MULTILINE)[1:]
    return {block.split("==")[0]: re.findall(r"==\S+|sha256:\w+", block) for block in blocks}


@pytest.mark.parametrize("name", ["coordinator.txt", "models.txt"])
def test_the_images_packages_are_those_of_the_lock(name):
    lock, image = pins("lock.txt"), pins(name)
    assert image.items() <= lock.items(), "run `make lock`"
    assert {"grpcio", "transformers"} <= image.keys()
    assert not image.keys() & {"torch", "pytest", "mypy", "grpcio-tools"}
    text = (ROOT / "requirements" / name).read_text()
    assert not [word for word in ("://", "--index", "--extra-index", "--find-links", "nvidia") if word in text]


def imported(folders):
    """Return the distributions whose modules the code in some folders imports, by their names in a lock."""
    owners = packages_distributions()
    trees = [ast.parse(path.read_text()) for folder in folders for path in (ROOT / folder).rglob("*.py")]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
    found = {owners[name.partition(".")[0]][0] for name in names if name.partition(".")[0] in owners}
    return {name.lower().replace("_", "-") for name in found}


def test_the_model_images_have_what_their_code_imports():
    needed = imported(["specdec", "draft_service", "target_service"])
    assert {"torch", "gguf", "huggingface-hub"} <= needed
    assert needed - {"specdec"} <= pins("models.txt").keys() | pins("torch.txt").keys()
