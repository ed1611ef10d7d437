"""Rules of the house that no linter knows."""

import ast
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = {"specdec", "draft_service", "target_service", "coordinator", "client", "training", "deploy", "benchmarks"}
ROOT_ENTRIES = PACKAGES | {
    ".ci",
    ".dockerignore",
    ".github",
    ".gitignore",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "LICENSE",
    "Makefile",
    "README.md",
    "buf.yaml",
    "docs",
    "protos",
    "pyproject.toml",
    "requirements",
    "tests",
}
SAYS_NOTHING = {"base", "common", "helper", "helpers", "manager", "managers", "misc", "util", "utils"}
MAX_LINES = 300
# One place turns logits into a choice; a second one would drift from it.
CHOICES = {"softmax", "cumsum", "argmax", "multinomial"}
MAY_CHOOSE = {"specdec/sampling.py", "specdec/verification.py", "specdec/draws.py"}


def files():
    listed = ["git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, check=True, capture_output=True, text=True).stdout.splitlines()
    return [Path(name) for name in sorted(set(names)) if (ROOT / name).is_file()]


def package_code():
    return [path for path in files() if path.suffix == ".py" and path.parts[0] in PACKAGES]


def choices_in(source):
    """Names of the calls in CHOICES, as an attribute (torch.softmax) or imported by name."""
    nodes = list(ast.walk(ast.parse(source)))
    used = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    imported = {alias.name for node in nodes if isinstance(node, ast.ImportFrom) for alias in node.names}
    return (used | imported) & CHOICES


def test_root_holds_only_what_the_house_has():
    strangers = {path.parts[0] for path in files()} - ROOT_ENTRIES
    assert not strangers


def test_every_module_name_says_something():
    code = [path for path in files() if path.suffix == ".py"]
    assert code
    assert not [path for path in code if SAYS_NOTHING & {Path(part).stem for part in path.parts}]


def test_hand_written_files_are_short():
    lengths = {path: len((ROOT / path).read_text().splitlines()) for path in package_code()}
    assert lengths
    assert not {path: lines for path, lines in lengths.items() if lines > MAX_LINES}


def test_tokens_are_chosen_in_one_place():
    found = {path.as_posix(): choices_in((ROOT / path).read_text()) for path in package_code()}
    assert not {path: names for path, names in found.items() if names and path not in MAY_CHOOSE}


@pytest.mark.parametrize("source", ["torch.softmax(x, -1)", "x.cumsum(0)", "from torch import argmax"])
def test_a_choice_elsewhere_would_be_found(source):
    assert choices_in(source)


def test_docstrings_and_names_of_choices_are_no_calls():
    assert not choices_in('"""softmax, cumsum."""\nargmax = 1')


def test_lock_names_no_registry():
    files = ("lock.txt", "torch.txt", "files.txt", "fuzz.txt")
    text = "".join((ROOT / "requirements" / name).read_text() for name in files)
    assert "torch==" in text
    assert not [word for word in ("://", "--index", "--extra-index", "--find-links", "nvidia") if word in text]
