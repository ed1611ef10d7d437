"""The ``load`` benchmark's report in words and tables, made from its JSON alone."""

from typing import Any

from benchmarks.output import Grid
from benchmarks.surroundings import in_words
from benchmarks.ways import ADAPTIVE, PLAIN
from benchmarks.wording import NOTHING, adaptive_goals, against_goal, number

CLOSED, OPEN = "closed", "open"
MANY, TIMES = 16, 4.0  # sessions, and what they bring against one


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


def goals(report: dict[str, Any]) -> str:
    """Return the paragraph that compares what many sessions bring with one, and adaptive gamma with the fixed ones."""
    paces: dict[float, dict[str, float]] = {}
    for cell in report["cells"]:
        if cell["kind"] == CLOSED and cell["tokens_a_second"]:
            paces.setdefault(cell["load"], {})[cell["way"]] = cell["tokens_a_second"]
    compared = {f"{load:g} sessions": ways for load, ways in paces.items() if {ADAPTIVE, PLAIN} <= ways.keys()}
    if not compared:
        return "No load was long enough to be compared."
    said = []
    if {1, MANY} <= paces.keys():
        times = {way: pace / paces[1][way] for way, pace in paces[MANY].items() if way in paces[1]}
        said.append(against_goal(f"What {MANY} sessions bring against one", times, TIMES))
    best = {load: max(pace for way, pace in ways.items() if way != ADAPTIVE) for load, ways in compared.items()}
    shares = {load: ways[ADAPTIVE] / best[load] for load, ways in compared.items()}
    plain = {load: ways[ADAPTIVE] / ways[PLAIN] for load, ways in compared.items()}
    return "Goals: " + " ".join(said + adaptive_goals(shares, plain))


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
        f"{settings['seconds']:g} seconds, of which the first quarter does not count, once in every way and again for "
        f"{settings['laps']} laps in changing order; answers of at most {settings['max_new_tokens']} tokens at "
        f"temperature {settings['temperature']:g}, verification {settings['verification']}. Sessions ask again as soon "
        "as they are answered; requests arrive as the same Poisson process in every way, at shares of the rate that "
        "plain decoding served at most. **Against gamma 0** compares the tokens a second in all. **First token** is "
        "the time to the first tokens of an answer (those still waiting at the end count with what they had waited), "
        "**a token** the mean time of the later ones; p50 and p99 over answers. The last table has what a round's "
        "calls take: Propose in all, and of Verify what it waited in the target's queue, spent in passes with all that "
        "share them and in verification, and what is left, the wire above all."
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
        number(cell["tokens_a_second"], 1),
        number(cell["against_plain"], 2),
        number(cell["draft_tokens_a_round"], 2),
        *_milliseconds(first),
        *_milliseconds(token),
        str(cell["answers"]),
        str(cell["waiting"]),
        str(cell["refused"]),
    ]


def _milliseconds(found: dict[str, float] | None) -> list[str]:
    return [NOTHING, NOTHING] if found is None else [number(1000 * found[name], 1) for name in ("p50", "p99")]
