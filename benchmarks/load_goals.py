"""What the ``load`` benchmark says of its goals, and in the run's own figures why one is missed. Pure."""

from collections.abc import Mapping
from typing import Any

from benchmarks.ways import ADAPTIVE, PLAIN
from benchmarks.wording import ADAPTIVE_SHARE, AGAINST_PLAIN, adaptive_goals, against_goal, counted, said_of_goals

CLOSED = "closed"
MANY, TIMES = 16, 4.0  # sessions, and what they bring against one

Ways = Mapping[str, Mapping[str, Any]]
"""Cells of one load, by way."""


def goals(report: dict[str, Any]) -> str:
    """Return the list that compares what many sessions bring with one, and adaptive gamma with the fixed ones."""
    loads: dict[float, dict[str, Any]] = {}
    for cell in report["cells"]:
        if cell["kind"] == CLOSED and cell["tokens_a_second"] and cell["rounds"]:
            loads.setdefault(cell["load"], {})[cell["way"]] = cell
    compared = {counted(load, "session"): ways for load, ways in loads.items() if {ADAPTIVE, PLAIN} <= ways.keys()}
    if not compared:
        return "No load was long enough to be compared."
    said = _many(loads[1], loads[MANY]) if {1, MANY} <= loads.keys() else []
    shares = {load: _times(ways[ADAPTIVE], _best(ways)) for load, ways in compared.items()}
    plain = {load: ways[ADAPTIVE]["against_plain"] for load, ways in compared.items()}
    said += adaptive_goals(shares, plain)
    for load, ways in compared.items():
        if shares[load] < ADAPTIVE_SHARE or plain[load] < AGAINST_PLAIN:
            said.append(f"At {load} {_round(ways[ADAPTIVE])}; {_round(_best(ways))}.")
    return said_of_goals(said)


def _many(one: Ways, many: Ways) -> list[str]:
    times = {way: _times(cell, one[way]) for way, cell in many.items() if way in one}
    return [against_goal(f"What {MANY} sessions bring against one", times, TIMES)] + [
        f"With one session {_round(one[way])}; with {MANY} {_round(many[way])}."
        for way, found in times.items()
        if found < TIMES
    ]


def _best(ways: Ways) -> Mapping[str, Any]:
    return max((cell for way, cell in ways.items() if way != ADAPTIVE), key=lambda cell: float(cell["tokens_a_second"]))


def _times(cell: Mapping[str, Any], other: Mapping[str, Any]) -> float:
    return float(cell["tokens_a_second"] / other["tokens_a_second"])


def _round(cell: Mapping[str, Any]) -> str:
    """Say what a round of a way had, and what its calls and the pass that all share took."""
    took = cell["round_ms"]
    drafted, stood = cell["draft_tokens_a_round"], sum(one["accepted"] for one in cell["acceptance"]) / cell["rounds"]
    tokens = f"had {drafted:.2f} draft tokens, of which {stood:.2f} stood, and " if drafted else ""
    calls = f"{sum(took.values()):.1f} ms of calls, {took['forward']:.1f} ms of it in the pass that all share"
    return f"a round of {cell['way']} {tokens}took {calls}"
