"""Every kind of fault that tests/FAULTS.md lists, and every row of what may die in the README, has tests that exist.

Those of the README run in `make test`, too.
"""

import ast
import re
import tomllib
from functools import cache
from itertools import takewhile
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
MARKS = "pytestmark"  # of every test of a file
TEST_PATHS = tomllib.loads((TESTS.parent / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]["testpaths"]
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


def is_long(marks):
    return any(isinstance(node, ast.Attribute) and node.attr == "long" for node in ast.walk(marks))


@cache
def defined_in(path):
    """Return for each test that a file defines whether `make test` runs it, with some of its parameters at least."""
    if not (TESTS / path).is_file():
        return {}
    nodes = ast.parse((TESTS / path).read_text()).body
    for_all = [node.value for node in nodes if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == MARKS]
    collected = f"tests/{path.partition('/')[0]}" in TEST_PATHS and not any(map(is_long, for_all))
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    # A call decorates with parameters; of those some may be long.
    marks = {each.name: [mark for mark in each.decorator_list if not isinstance(mark, ast.Call)] for each in functions}
    return {name: collected and not any(map(is_long, own)) for name, own in marks.items() if name.startswith("test_")}


def only_long(cell):
    """What a cell names that `make test` leaves out."""
    return [f"{path}::{name}" for path, name in NAME.findall(cell) if defined_in(path).get(name) is False]


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
def test_every_death_has_tests_that_exist_and_run_in_make_test(who, tests):
    assert not missing_from(tests)
    assert not only_long(tests)


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


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("chaos/test_soak.py", "test_a_process_that_leaks_fails_and_nothing_is_left_behind"),
        ("integration/test_several_processes.py", "test_two_processes_answer_what_one_answers_and_end_in_order"),
    ],
)
def test_a_test_that_only_make_verify_runs_is_noticed(path, name):
    assert only_long(f"`{path}::{name}`")


def test_a_test_with_some_long_parameters_runs_in_make_test_too():
    assert defined_in("unit/draft_service/test_drafting_ahead.py")[
        "test_proposals_and_text_are_those_without_it_to_the_bit"
    ]
