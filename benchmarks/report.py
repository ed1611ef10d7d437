"""All recorded results as one page that needs nothing else: ``python -m benchmarks.report``, behind ``make report``.

Results are the JSON objects that the benchmarks keep with --write.
"""

import argparse
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from benchmarks import load_section, overhead_section, pair_section, pass_cost_section, wire_section
from benchmarks.command import json_path
from benchmarks.output import Grid, console
from benchmarks.plot import Plot, svg
from benchmarks.report_plots import load_plots, overhead_plots, pair_plots, pass_cost_plots, wire_plots
from benchmarks.results import RESULTS
from benchmarks.surroundings import in_words

FOLDER = json_path(RESULTS, "any").parent
PAGE = Path(".run/report.html")
STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
body, svg text { color: #1c1c1c; fill: #1c1c1c; background: #fff; }
h1, h2 { line-height: 1.2; } h2 { margin-top: 3rem; border-top: 1px solid #ccc; padding-top: 1rem; }
p.where { color: #555; font-size: .85rem; } code { font-size: .9em; }
figure { margin: 1.5rem 0; } svg { width: 100%; height: auto; }
svg .title { font-weight: 600; font-size: 14px; } svg .label, svg .tick, svg .legend { font-size: 12px; }
svg .label { text-anchor: middle; } svg .grid { stroke: #e4e4e4; } svg .level { stroke: #888; }
div.wide { overflow-x: auto; } table { border-collapse: collapse; font-size: .8rem; margin: .5rem 0 1.5rem; }
caption { text-align: left; font-weight: 600; } th, td { padding: .15rem .6rem; border-bottom: 1px solid #e4e4e4; }
td, th { text-align: right; font-variant-numeric: tabular-nums; } td:first-child, th:first-child { text-align: left; }
"""

Report = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Kind:
    """How reports of one benchmark are shown.

    Attributes:
        title: of the chapter.
        plots: made from the report.
        grids: its tables.
    """

    title: Callable[[Any], str]
    plots: Callable[[Report], Sequence[Plot]]
    grids: Callable[[Any], Sequence[Grid]]


KINDS = {
    "overhead": Kind(lambda _: "Overhead of a round", overhead_plots, overhead_section.grids),
    "pair": Kind(lambda report: f"Pair {report['pair']}", pair_plots, pair_section.grids),
    "load": Kind(lambda report: f"Load {report['name']}", load_plots, load_section.grids),
    "pass_cost": Kind(
        lambda report: f"Cost of a pass of {report['settings']['model']}", pass_cost_plots, pass_cost_section.grids
    ),
    "wire": Kind(lambda _: "Bytes and CPU time of a round", wire_plots, wire_section.grids),
}


def page(reports: Sequence[Report]) -> str:
    """Return the page of all reports, in the order of KINDS."""
    ordered = sorted(reports, key=lambda report: list(KINDS).index(report["benchmark"]))
    chapters = [_chapter(report, KINDS[report["benchmark"]]) for report in ordered]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width"><title>Measurements</title>'
        f"<style>{STYLE}</style></head>\n<body><h1>Measurements</h1>\n" + "\n".join(chapters) + "\n</body></html>\n"
    )


def _chapter(report: Report, kind: Kind) -> str:
    figures = [f"<figure>{svg(plot)}</figure>" for plot in kind.plots(report)]
    where = f'<p class="where">{_text(in_words(dict(report)))}</p>'
    return "\n".join([f"<h2>{escape(kind.title(report))}</h2>", where, *figures, *map(_table, kind.grids(report))])


def _table(grid: Grid) -> str:
    head = "".join(f"<th>{_text(name)}</th>" for name in grid.header)
    rows = "".join("<tr>" + "".join(f"<td>{_text(text)}</td>" for text in row) + "</tr>\n" for row in grid.rows)
    return f'<div class="wide"><table><caption>{_text(grid.title)}</caption><tr>{head}</tr>\n{rows}</table></div>'


def _text(markdown: str) -> str:
    """Turn the little Markdown that reports use into HTML."""
    text = re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(markdown, quote=False))
    return re.sub(r"\*\*([^*]+)\*\*", r"<strong>\1</strong>", text)


def main(arguments: list[str]) -> int:
    """Write the page and say where it is."""
    parser = argparse.ArgumentParser("python -m benchmarks.report", description=__doc__)
    parser.add_argument("--results", type=Path, default=FOLDER, help="folder of JSON files (%(default)s)")
    parser.add_argument("--out", type=Path, default=PAGE, help="the page (%(default)s)")
    options = parser.parse_args(arguments)
    reports = [json.loads(path.read_text()) for path in sorted(options.results.glob("*.json"))]
    if not reports:
        console().print(f"{options.results} holds no results: `make bench BENCH_FLAGS=--write` records some")
        return 1
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(page(reports))
    console().print(f"{len(reports)} reports are in {options.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
