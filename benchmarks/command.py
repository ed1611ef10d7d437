"""What every benchmark's command line does: measure or read what was measured, print, and write where wanted."""

import argparse
import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from benchmarks.output import Grid, console, emit, rounded
from benchmarks.results import RESULTS, BrokenSection, write_section
from client.failures import from_rpc_error
from deploy.process import StartFailed

Report = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Benchmark:
    """One benchmark.

    Attributes:
        module: what it is called on the command line, and in its reports.
        parse: reads the command line; ``add_output_flags`` was called on its parser.
        measure: takes the options and the command line; may raise StartFailed and grpc.RpcError.
        name: of the report's section and file, such as ``pair:smollm2``.
        section: the report in Markdown.
        grids: the report's tables, for a terminal.
    """

    module: str
    parse: Callable[[list[str]], argparse.Namespace]
    measure: Callable[[argparse.Namespace, list[str]], Report]
    name: Callable[[Report], str]
    section: Callable[[Report], str]
    grids: Callable[[Report], Sequence[Grid]]


def run(benchmark: Benchmark, arguments: list[str]) -> int:
    """Run a command line and return its exit status."""
    options = benchmark.parse(arguments)
    try:
        report = _read(benchmark, options.source) if options.source else benchmark.measure(options, arguments)
    except NotItsReport as refusal:
        console().print(str(refusal))
        return 1
    except StartFailed as failure:
        console().print(str(failure))
        return 1
    except grpc.RpcError as error:
        console().print(str(from_rpc_error(error, "the coordinator")))
        return 1
    report = rounded(report)
    emit(report, benchmark.grids(report))
    return _write(benchmark, options.results, report) if options.write else 0


def _write(benchmark: Benchmark, results: Path, report: Report) -> int:
    """Keep a report and put its section in place; what was measured is kept even where the section has no place."""
    name = benchmark.name(report)
    kept = json_path(results, name)
    write_json(kept, report)
    try:
        write_section(results, name, benchmark.section(report))
    except BrokenSection as broken:
        console().print(f"{results} stays as it was: {broken}. What was measured is in {kept}")
        return 1
    return 0


class NotItsReport(Exception):
    """A file holds no report of the benchmark that was to show it."""


def _read(benchmark: Benchmark, source: Path) -> Report:
    try:
        report = json.loads(source.read_text())
    except (OSError, ValueError) as error:
        raise NotItsReport(f"{source} cannot be read: {error}") from error
    if not isinstance(report, dict) or report.get("benchmark") != benchmark.module:
        raise NotItsReport(f"{source} is no report of benchmarks.{benchmark.module}")
    try:
        benchmark.name(report), benchmark.section(report), benchmark.grids(report)
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise NotItsReport(f"{source} is no whole report of benchmarks.{benchmark.module}: {error!r}") from error
    return report


def json_path(results: Path, name: str) -> Path:
    """Return where the JSON behind a section is kept: in a folder beside the file of the sections."""
    return results.parent / "results" / f"{re.sub(r'[^A-Za-z0-9._-]+', '-', name)}.json"


def write_json(path: Path, report: Report) -> None:
    """Keep a report, laid out so that a later one can be compared line by line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=1) + "\n")


def parser_of(module: str, description: str | None) -> argparse.ArgumentParser:
    """Return the parser of a benchmark's flags with those that all have: where results go, and where from."""
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(f"python -m benchmarks.{module}", description=description, formatter_class=layout)
    add = parser.add_argument
    add("--quick", action="store_true", help="a first look that says little")
    add("--write", action="store_true", help="put the section into RESULTS.md and its JSON beside it")
    add("--results", type=Path, default=RESULTS, help="the file to write into (%(default)s)")
    add("--from", dest="source", type=Path, help="read the JSON of an earlier run in place of measuring")
    return parser


def refuse(parser: argparse.ArgumentParser, flags: Sequence[str], why: str) -> None:
    """Refuse flags that other benchmarks take, and say why."""

    class Refused(argparse.Action):
        def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
            parser.error(why)

    parser.add_argument(*flags, action=Refused, help=argparse.SUPPRESS)


def parse_quick(parser: argparse.ArgumentParser, arguments: list[str], quick: dict[str, Any]) -> argparse.Namespace:
    """Read the flags; what --quick sets gives way to flags of one's own."""
    options = parser.parse_args(arguments)
    if options.quick:
        parser.set_defaults(**quick)
        options = parser.parse_args(arguments)
    return options


def positive(text: str) -> int:
    """Read a whole number above 0.

    Raises:
        argparse.ArgumentTypeError: it is none.
    """
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is no whole number above 0")
    return int(text)


def not_negative(text: str) -> float:
    """Read a number from 0 on.

    Raises:
        argparse.ArgumentTypeError: it is none.
    """
    try:
        value = float(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text} is no number") from error
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is no number from 0 on")
    return value


def above_zero(text: str) -> float:
    """Read a number above 0.

    Raises:
        argparse.ArgumentTypeError: it is none.
    """
    value = not_negative(text)
    if not value:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return value


def chance(text: str) -> float:
    """Read a number from 0 to 1.

    Raises:
        argparse.ArgumentTypeError: it is none.
    """
    value = not_negative(text)
    if value > 1:
        raise argparse.ArgumentTypeError(f"{text} is above 1")
    return value


def whole(text: str) -> int:
    """Read a whole number from 0 on.

    Raises:
        argparse.ArgumentTypeError: it is none.
    """
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text} is no whole number from 0 on")
    return int(text)
