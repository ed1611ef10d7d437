"""The README says what is there: the tables of settings, and every path it names."""

import re

from deploy.settings_tables import BEGIN, README, in_readme

ROOT = README.parent
TEXT = README.read_text()
FOLDERS = "client|coordinator|deploy|draft_service|protos|specdec|target_service|tests"


def section(title):
    return re.search(rf"^## {title}\n(.*?)^## ", TEXT, re.MULTILINE | re.DOTALL)[1]


def layout_paths():
    """Read the layout: a folder or file at the margin, what is in the folder below it or after it."""
    folder = ""
    for line in re.search(r"```\n(.*?)```", section("Layout"), re.DOTALL)[1].splitlines():
        first = line.split()[0].rstrip(",")
        if not line.startswith(" "):
            folder = first
            yield folder
        names = re.findall(r"\w+\.py", line) if ".py" in line else [first]
        yield from (folder + name for name in names if name != folder)


def test_tables_of_settings_are_those_of_the_classes():
    assert in_readme(TEXT) == TEXT, "run `python -m deploy.settings_tables --write`"


def test_a_table_that_is_behind_is_noticed():
    changed = TEXT.replace(BEGIN, f"{BEGIN}| `OLD` | | |\n")
    assert in_readme(changed) != changed


def test_the_layout_names_what_is_there():
    paths = list(layout_paths())
    assert {"protos/specdec/v1/", "specdec/prefix.py", "specdec/model/", "coordinator/gamma.py"} <= set(paths)
    assert not [path for path in paths if not (ROOT / path).exists()]


def test_the_text_names_what_is_there():
    paths = re.findall(rf"`((?:{FOLDERS})/[\w./]*)`", TEXT)
    assert len(paths) > 10
    assert not [path for path in paths if not (ROOT / path).exists()]


def test_the_life_of_a_request_passes_through_every_service():
    paths = re.findall(rf"`((?:{FOLDERS})/[\w./]*)`", section("Life of a request"))
    assert {path.split("/")[0] for path in paths} >= {"client", "coordinator", "draft_service", "target_service"}
