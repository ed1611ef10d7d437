"""What benchmarks show, and where."""

import json

from benchmarks.output import Grid, emit, rounded
from benchmarks.surroundings import surroundings

GRID = Grid("Pace", ["kind", "tokens/s"], [["chat", "3.1"], ["edit", "4.2"]])


def test_standard_output_is_one_json_object(capsys):
    emit({"seconds": 1.5}, [GRID])
    shown = capsys.readouterr()
    assert json.loads(shown.out) == {"seconds": 1.5}
    assert shown.out.count("\n") == 1
    assert shown.err == ""


def test_a_grid_becomes_markdown():
    assert GRID.markdown() == "Pace:\n\n| kind | tokens/s |\n| --- | ---: |\n| chat | 3.1 |\n| edit | 4.2 |\n"


def test_floats_are_cut_and_nothing_else():
    assert rounded({"a": (1 / 3, 12345678), "b": None, "c": [True, "x"]}) == {
        "a": [0.333333, 12345678],
        "b": None,
        "c": [True, "x"],
    }


def test_surroundings_can_be_repeated_from_what_they_say():
    told = surroundings("benchmarks.pair", ["--target", "a b"])
    assert told["command"] == "python -m benchmarks.pair --target 'a b'"
    assert {"cpu", "cores", "logical_cores", "memory_gib", "gpus", "load_average"} <= told["machine"].keys()
    assert {"python", "torch", "transformers", "grpcio", "redis"} <= told["versions"].keys()
    assert json.loads(json.dumps(told)) == told
