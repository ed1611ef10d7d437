"""The page of all results: its plots say what the JSON says, and it loads nothing."""

import json
import re
from itertools import pairwise
from xml.dom.minidom import parseString

import pytest

from benchmarks.cost_model import Costs, alike
from benchmarks.plot import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Plot, Series, svg, ticks
from benchmarks.report import main, page
from benchmarks.report_plots import load_plots, overhead_plots, pair_plots, wire_plots

FACTS = {"date": "2026-01-02", "command": "python -m x", "commit": "a<b", "versions": {}, "tracing": "off"}
FACTS |= {"machine": {"cpu": "C", "cores": 2, "logical_cores": 4, "memory_gib": 8.0, "gpus": [], "load_average": 0.1}}
FACTS |= {"environment": {}, "seconds": 9.0}


@pytest.mark.parametrize(
    ("low", "high"), [(0, 1.503), (0, 8), (0, 0.67), (100, 8000), (0, 2392.0), (4, 4), (0, 0.0007), (-3, 17)]
)
def test_ticks_are_few_round_and_span_the_range(low, high):
    found = ticks(low, high)
    assert found[0] <= low
    assert found[-1] >= high
    assert 2 <= len(found) <= 7
    assert found == sorted(set(found))


def drawn(plot):
    """The points of the markers, in the picture's units, by series."""
    marks = re.findall(r'<circle cx="([\d.]+)" cy="([\d.]+)" r="3.5" fill="\S+"><title>([^:]+):', svg(plot))
    return {name: [(float(x), float(y)) for x, y, other in marks if other == name] for _, _, name in marks}


def test_points_are_where_they_belong():
    plot = Plot("Speed", "n", "s", [Series("a", [(0, 0), (5, 10)], 0)])
    assert drawn(plot) == {"a": [(LEFT, HEIGHT - BOTTOM), (WIDTH - RIGHT, TOP)]}


def test_doublings_get_the_same_room():
    series = Series("a", [(1, 1), (4, 1), (16, 1), (64, 1)], 0)
    marks = drawn(Plot("Load", "n", "s", [series], doubling=True))["a"]
    gaps = [right - left for (left, _), (right, _) in pairwise(marks)]
    assert gaps == pytest.approx([(WIDTH - RIGHT - LEFT) / 3] * 3, abs=0.2)


def test_a_plot_is_well_formed_whatever_it_is_called():
    picture = svg(Plot("a < b & c", 'x "y"', "z", [Series("<script>", [(1, 2)], 9, dashed=True)], level=1))
    parseString(picture)
    assert "<script>" not in picture


@pytest.fixture
def overhead():
    point = Costs(draft=5, verify=30, plain=30)
    grid = [
        {"draft_ms": 5.0, "alpha": alpha, "gamma": gamma, "round_trip_ms": 0.0, "tokens_a_round": 2.0}
        | {"expected_tokens_a_round": 2.0, "round_ms": {"median": 55.0}, "expected_round_ms": 55.0}
        | {"speedup_in_all": 1.0 + alpha * gamma / 10, "expected_speedup": point.speedup(alike(alpha, gamma))}
        for alpha in (0.5, 0.9)
        for gamma in (0, 5)
    ]
    return FACTS | {"benchmark": "overhead", "settings": {"point": {"target_ms": 30.0}}, "grid": grid, "ways": []}


def test_measured_speedups_lie_beside_the_curve(overhead):
    against_gamma, against_alpha = overhead_plots(overhead)
    by_name = {series.name: series for series in against_gamma.series}
    assert by_name["α = 0.9, measured"].points == [(0.0, 1.0), (5.0, 1.45)]
    assert by_name["α = 0.9, expected"].points[5][1] == pytest.approx(Costs(5, 30, 30).speedup(alike(0.9, 5)))
    assert by_name["α = 0.9, measured"].colour == by_name["α = 0.9, expected"].colour
    assert {series.name: series.points for series in against_alpha.series}["γ = 5, measured"] == [
        (0.5, 1.25),
        (0.9, 1.45),
    ]


def test_what_drafting_ahead_saves_is_shown_against_the_round_trip(overhead):
    way = {"gamma": 5, "verification": "coupled", "expected_speedup": 1.5}
    ways = [
        way | {"ahead": ahead, "round_trip_ms": added, "speedup_in_all": 1.4 + ahead - added / 100}
        for added in (0.0, 10.0)
        for ahead in (False, True)
    ]
    near_alone = way | {"verification": "token", "ahead": False, "round_trip_ms": 0.0, "speedup_in_all": 9.0}
    *_, plot = overhead_plots(overhead | {"ways": [near_alone, *ways]})
    points = {series.name: series.points for series in plot.series}
    assert points["sequential"] == [(0.0, 1.4), (10.0, pytest.approx(1.3))]
    assert points["drafting ahead"] == [(0.0, 2.4), (10.0, pytest.approx(2.3))]


def test_a_pair_shows_gammas_adaptive_and_positions_seen_often_enough():
    cell = {"kind": "all", "temperature": 0.0, "expected_speedup": {"median": 1.6}}
    gamma = cell | {"way": "gamma 2", "gamma": 2, "speedup": {"median": 1.5}}
    gamma["acceptance"] = [{"reached": 90, "rate": 0.7}, {"reached": 9, "rate": 0.5}]
    adaptive = cell | {"way": "adaptive", "gamma": None, "speedup": {"median": 1.55}, "draft_tokens_a_round": 3.5}
    library = {"kind": "all", "temperature": 0.0, "way": "assisted", "speedup": {"median": 0.8}}
    plain = {"kind": "all", "temperature": 0.0, "way": "gamma 0", "gamma": 0}
    draft = {"draft": "D", "cells": [plain, gamma, adaptive | {"acceptance": []}, library]}
    speedups, acceptance = pair_plots({"drafts": [draft], "settings": {"temperatures": [0.0]}})
    points = {series.name: series.points for series in speedups.series}
    assert points == {"all": [(2.0, 1.5)], "all, expected": [(2.0, 1.6)], "all, adaptive": [(3.5, 1.55)]}
    assert acceptance.series[0].points == [(1.0, 0.7)]


@pytest.fixture
def load():
    cell = {"kind": "closed", "tokens_a_second": 20.0, "first_token_seconds": {"p50": 0.1, "p99": 0.4}}
    cell |= {"token_seconds": None, "against_plain": 1.0, "draft_tokens_a_round": 0.0, "answers": 3}
    cells = [cell | {"load": load, "way": way, "waiting": 0, "refused": 0} for load in (1, 8) for way in ("a", "b")]
    return FACTS | {"benchmark": "load", "name": "N", "cells": [*cells, cells[0] | {"kind": "open"}]}


def test_latency_under_load_is_shown_where_there_is_any(load):
    pace, first = load_plots(load)
    assert [series.name for series in first.series] == ["a, p50", "b, p50", "a, p99", "b, p99"]
    assert first.series[2].points == [(1.0, 400.0), (8.0, 400.0)]
    assert pace.series[0].points == [(1.0, 20.0), (8.0, 20.0)]


def test_bytes_are_those_of_all_connections():
    cells = [
        {"support_size": 8, "context": context, "bytes": {"draft": 1.0, "target": 2.0, "redis": 4.0}}
        for context in (8000, 100)
    ]
    [plot] = wire_plots({"cells": cells})
    assert plot.series[0].points == [(100.0, 7.0), (8000.0, 7.0)]


def test_the_page_needs_nothing_else(load):
    text = page([load])
    assert "<h2>Load N</h2>" in text
    assert "commit a&lt;b" in text
    assert text.count("<svg") == text.count("</svg>") == len(load_plots(load))
    assert "<td>1, a</td>" in text
    assert not re.search(r"<script|src=|href=|url\(|http", text)


def test_the_command_writes_the_page_of_all_results(tmp_path, load, capsys):
    out = tmp_path / "deep" / "page.html"
    assert main(["--results", str(tmp_path), "--out", str(out)]) == 1
    assert "holds no results" in " ".join(capsys.readouterr().err.split())
    (tmp_path / "load-N.json").write_text(json.dumps(load))
    assert main(["--results", str(tmp_path), "--out", str(out)]) == 0
    assert out.read_text() == page([load])
