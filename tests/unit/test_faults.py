"""Every kind of fault that tests/FAULTS.md lists, and every row of what may die in the README, has tests that exist."""

import ast
import re
from functools import cache
from itertools import takewhile
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
NAME = re.compile(r"`([\w/]+\.py)::(\w+)`")


def rows(path, header):
    """Return the cells of the tables under a header, row by row."""
    lines = path.read_text().splitlines()
    found = []
    for place, line in enumerate(lines):
        if line.startswith(f"| {header} "):
            table = takewhile(lambda each: each.startswith("|"), lines[place + 2 :])
            found += [[cell.strip() for cell in row.strip().strip("|").split("|")] for row in table]
    return found


ROWS = rows(TESTS / "FAULTS.md", "kind")
DEATHS = rows(TESTS.parent / "README.md", "if this dies")


@cache
def defined_in(path):
    """Names of the tests that a file defines."""
    if not (TESTS / path).is_file():
        return frozenset()
    nodes = ast.parse((TESTS / path).read_text()).body
    functions = (node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return frozenset(node.name for node in functions if node.name.startswith("test_"))


def missing_from(cell):
    """What a cell names that is not there; all of it when it names no test and has no reason for that."""
    names = NAME.findall(cell)
    if not names:
        return [] if re.match(r"benchmarks: \w", cell) else [cell]
    return [f"{path}::{name}" for path, name in names if name not in defined_in(path)]


def test_the_table_is_read():
    assert len(ROWS) > 40
    assert {len(row) for row in ROWS} == {2}
    assert len({kind for kind, _ in ROWS}) == len(ROWS)


@pytest.mark.parametrize(("kind", "tests"), ROWS, ids=[kind[:40] for kind, _ in ROWS])
def test_every_kind_has_tests_that_exist(kind, tests):
    assert not missing_from(tests)


def test_the_table_of_deaths_is_read():
    assert len(DEATHS) > 10
    assert {len(row) for row in DEATHS} == {3}


@pytest.mark.parametrize(("who", "tests"), [(who, tests) for who, _, tests in DEATHS])
def test_every_death_has_tests_that_exist(who, tests):
    assert not missing_from(tests)


@pytest.mark.parametrize(
    "cell",
    [
        "",
        "benchmarks",
        "by hand",
        "`unit/test_faults.py::test_that_is_not_there`",
        "`unit/nowhere.py::test_the_table_is_read`",
    ],
)
def test_a_name_of_nothing_is_noticed(cell):
    assert missing_from(cell)
