"""What every benchmark shows: one JSON object on standard output; progress and tables on a terminal."""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

SIGNIFICANT_DIGITS = 6


@dataclass(frozen=True, slots=True)
class Grid:
    """A table before it is known where it is shown.

    Attributes:
        title: what it says.
        header: one text a column.
        rows: one text a column each.
    """

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]

    def markdown(self) -> str:
        """Lay it out for a file; all columns but the first are numbers."""
        ruler = ["---", *["---:"] * (len(self.header) - 1)]
        lines = [f"| {' | '.join(row)} |" for row in (self.header, ruler, *self.rows)]
        return "\n".join([f"{self.title}:", "", *lines, ""])

    def rich(self) -> Table:
        """Lay it out for a terminal."""
        table = Table(title=self.title, title_justify="left")
        for index, name in enumerate(self.header):
            table.add_column(name, justify="right" if index else "left")
        for row in self.rows:
            table.add_row(*row)
        return table


def console() -> Console:
    """Return standard error, where people read."""
    return Console(stderr=True, highlight=False, markup=False)


def progress(shown_on: Console) -> Progress:
    """Return a progress bar that is silent where nobody watches."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    times = (TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn())
    return Progress(*columns, *times, console=shown_on, disable=not shown_on.is_terminal)


def emit(report: dict[str, Any], grids: Sequence[Grid]) -> None:
    """Write the report as one line of JSON, and tables on a terminal."""
    terminal = console()
    if terminal.is_terminal:
        for grid in grids:
            terminal.print(grid.rich())
    sys.stdout.write(json.dumps(report) + "\n")


def rounded(value: Any) -> Any:
    """Return JSON-like data with every float cut to the digits that may mean something."""
    if isinstance(value, float):
        return float(f"{value:.{SIGNIFICANT_DIGITS}g}")
    if isinstance(value, dict):
        return {key: rounded(found) for key, found in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(found) for found in value]
    return value
