"""What the person sees: text on standard output, everything about it on standard error.

So ``specdec generate ... | next-program`` passes on the text alone.
"""

import os
import sys
from collections.abc import Sequence
from typing import TextIO

import typer
from google.protobuf.json_format import MessageToJson
from rich import box
from rich.console import Console
from rich.table import Table

from client.failures import RequestFailed
from client.measurement import Measurement
from specdec.v1 import generation_pb2 as v1

# source: (name, colour on a terminal, brackets elsewhere)
SOURCES = {
    v1.TOKEN_SOURCE_ACCEPTED: ("accepted", "green", "[]"),
    v1.TOKEN_SOURCE_CORRECTION: ("correction", "red", "<>"),
    v1.TOKEN_SOURCE_BONUS: ("bonus", "cyan", "{}"),
    v1.TOKEN_SOURCE_TARGET_ONLY: ("target only", "magenta", "()"),
}
# Control characters apart from tab and newline: on a terminal a model's text must not be a command.
_CONTROLS = {code: "\N{REPLACEMENT CHARACTER}" for code in [*range(32), *range(127, 160)] if chr(code) not in "\t\n"}


def takes_colour(stream: TextIO) -> bool:
    """Whether colour is wanted and understood there; NO_COLOR (any value but empty) says no."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def pieces(event: v1.GenerateResponse) -> list[tuple[str, v1.TokenSource]]:
    """Split an event's text by token.

    Returns:
        (text, TokenSource) in order; together they are the event's text. One piece without a source where the event
        does not say which token made which text certain.
    """
    texts, sources = list(event.token_texts), list(event.sources)
    if texts and len(texts) == len(sources) and "".join(texts) == event.text:
        return [(text, source) for text, source in zip(texts, sources, strict=True) if text]
    return [(event.text, v1.TOKEN_SOURCE_UNSPECIFIED)] if event.text else []


def marked(text: str, source: v1.TokenSource, *, colour: bool) -> str:
    """Mark a token's text by its source, with colour or with brackets; unknown sources stay plain."""
    if source not in SOURCES:
        return text
    _, hue, brackets = SOURCES[source]
    return typer.style(text, fg=hue) if colour else f"{brackets[0]}{text}{brackets[1]}"


class Display:
    """Writes events as they arrive, then the table."""

    def __init__(self, *, show_tokens: bool, json: bool) -> None:
        """Choose the form: text, text marked by token source, or JSON lines."""
        self._show_tokens = show_tokens
        self._json = json
        self._colour = takes_colour(sys.stdout)
        self._within_line = False

    def legend(self) -> None:
        """Explain the marks, where there are any."""
        if not self._show_tokens or self._json:
            return
        names = [self._legend_entry(source) for source in SOURCES]
        self.note("tokens by source: " + ", ".join(names))

    def _legend_entry(self, source: v1.TokenSource) -> str:
        name, hue, _ = SOURCES[source]
        if not self._colour:
            return marked(name, source, colour=False)
        text = f"{name} ({hue})"
        return marked(text, source, colour=True) if takes_colour(sys.stderr) else text

    def show(self, event: v1.GenerateResponse) -> None:
        """Write what an event brings."""
        if self._json:
            self._write(MessageToJson(event, preserving_proto_field_name=True, indent=None, ensure_ascii=False) + "\n")
        elif self._show_tokens:
            for text, source in pieces(event):
                self._write(marked(self._safe(text), source, colour=self._colour))
        else:
            self._write(self._safe(event.text))

    def end_line(self) -> None:
        """Close the line that the text left open."""
        if self._within_line:
            self._write("\n")

    def note(self, text: str) -> None:
        """Tell the person something that is not part of the text."""
        if self._within_line and sys.stderr.isatty() and sys.stdout.isatty():
            text = "\n" + text
        print(text, file=sys.stderr, flush=True)

    def waiting(self, failure: RequestFailed, pause: float) -> None:
        """Tell that a request is made again after a pause in seconds."""
        self.note(f"specdec: {failure}; trying again in {pause:.1f} s")

    def table(self, columns: Sequence[tuple[str, Measurement]], extra: Sequence[tuple[str, ...]] = ()) -> None:
        """Show measurements side by side.

        Args:
            columns: a title and a measurement each.
            extra: further rows: a name and one cell a column.
        """
        table = Table(box=box.SIMPLE, show_header=len(columns) > 1)
        table.add_column("")
        for title, _ in columns:
            table.add_column(title, justify="right")
        for row in zip(*(measurement.rows() for _, measurement in columns), strict=True):
            table.add_row(row[0][0], *(value for _, value in row))
        for cells in extra:
            table.add_row(*cells)
        Console(file=sys.stderr, highlight=False, markup=False).print(table)

    def comparison(self, with_draft: Measurement, without: Measurement) -> None:
        """Show an answer and the same one without speculation, with the ratio of their tokens a second."""
        ratio = with_draft.tokens_a_second / without.tokens_a_second if without.tokens_a_second else 0.0
        same = with_draft.text == without.text
        extra = [("speed-up", f"{ratio:.2f}x", ""), ("same text", "yes" if same else "no", "")]
        self.table([("speculation", with_draft), ("gamma 0", without)], extra)
        if not same:
            self.note("Sampled text follows the same law either way; greedy and coupled text is also the same.")

    def _safe(self, text: str) -> str:
        return text.translate(_CONTROLS) if sys.stdout.isatty() else text

    def _write(self, text: str) -> None:
        if text:
            self._within_line = not text.endswith("\n")  # first: Ctrl-C may come right after the write
            sys.stdout.write(text)
            sys.stdout.flush()
