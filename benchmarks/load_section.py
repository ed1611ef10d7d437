"""The ``load`` benchmark's report in words and tables, made from its JSON alone."""

from collections.abc import Sequence
from typing import Any

from benchmarks.load_goals import CLOSED, goals
from benchmarks.output import Grid
from benchmarks.speculation import spread
from benchmarks.surroundings import in_words
from benchmarks.wording import NOTHING, number, quartiles

OPEN = "open"


def section(report: dict[str, Any]) -> str:
    """Return the Markdown section of RESULTS.md."""
    parts = [
        f"## Load {report['name']}",
        in_words(report),
        _how(report),
        goals(report),
        *(grid.markdown() for grid in grids(report)),
    ]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def grids(report: dict[str, Any]) -> list[Grid]:
    """Return all tables, for a terminal."""
    return [
        _grid(report, CLOSED, "Sessions that ask again and again", "sessions"),
        _grid(report, OPEN, "Requests that arrive by themselves", "a second"),
        _rounds(report),
    ]


def _how(report: dict[str, Any]) -> str:
    settings = report["settings"]
    return (
        f"Target `{settings['target']}`, draft `{settings['draft']}`, {settings['threads']} threads each, on one "
        "machine with the coordinator, Redis and the client. Every load is put on for "
        f"{settings['seconds']:g} seconds, of which the first quarter does not count, {_times(settings['laps'])}; "
        f"answers of at most {settings['max_new_tokens']} tokens at temperature {settings['temperature']:g}, "
        f"verification {settings['verification']}. Sessions ask again as soon as they are answered; requests arrive as "
        "the same Poisson process in every way, at shares of the rate that plain decoding served at most. One "
        "coordinator answers in all ways, so adaptive gamma has learnt from the fixed ones, too. **Against gamma 0** "
        "is the ratio of tokens a second in all, lap by lap. **First token** is the time to the first tokens of an "
        "answer (those "
        "still waiting at the end count with what they had waited), **a token** the mean time of the later ones; p50 "
        "and p99 over answers, p99 of fewer than a hundred being the largest. The last table has what a round's calls "
        "take: Propose in all, and of Verify what it waited in the target's queue, spent in passes with all that share "
        "them and in verification, and what is left, the wire above all."
    )


def _times(laps: int) -> str:
    if laps == 1:
        return "once in every way, so that there is no spread"
    return (
        f"in every way in each of {laps} laps in changing order; tokens a second are medians over laps with quartiles"
    )


def _grid(report: dict[str, Any], kind: str, title: str, unit: str) -> Grid:
    header = [f"{unit}, way", "tokens/s", "against gamma 0", "draft tokens a round", "first token p50, ms", "p99"]
    header += ["a token p50, ms", "p99", "answers", "waiting", "refused"]
    cells = [cell for cell in report["cells"] if cell["kind"] == kind]
    return Grid(title, header, [_row(cell) for cell in cells])


def _rounds(report: dict[str, Any]) -> Grid:
    header = ["load, way", "propose, ms", "queue", "forward", "sampling", "else of verify"]
    rows = [
        [f"{cell['load']:.3g}, {cell['way']}", *(number(value, 1) for value in cell["round_ms"].values())]
        for cell in report["cells"]
        if cell.get("round_ms")
    ]
    return Grid("Where the time of a round's calls goes, by medians", header, rows)


def _row(cell: dict[str, Any]) -> list[str]:
    first, token = cell["first_token_seconds"], cell["token_seconds"]
    return [
        f"{cell['load']:.3g}, {cell['way']}",
        _over_laps(cell["tokens_a_second"], cell.get("tokens_a_second_by_run", ()), 1),
        _over_laps(cell["against_plain"], cell.get("against_plain_by_run", ()), 2),
        number(cell["draft_tokens_a_round"], 2),
        *_milliseconds(first),
        *_milliseconds(token),
        str(cell["answers"]),
        str(cell["waiting"]),
        str(cell["refused"]),
    ]


def _over_laps(figure: float | None, by_lap: Sequence[float], digits: int) -> str:
    return quartiles(spread(by_lap), digits) if len(by_lap) > 1 else number(figure, digits)


def _milliseconds(found: dict[str, float] | None) -> list[str]:
    return [NOTHING, NOTHING] if found is None else [number(1000 * found[name], 1) for name in ("p50", "p99")]
