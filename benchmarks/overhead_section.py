"""The ``overhead`` benchmark's report in words and tables, made from its JSON alone."""

from typing import Any

from benchmarks.output import Grid
from benchmarks.overhead_goals import cold_grid, goals
from benchmarks.surroundings import in_words
from benchmarks.wording import counted, number, quartiles

PARTS = {
    "draft_queue": "draft: queue",
    "draft_forward": "draft: passes",
    "draft_sampling": "draft: draws",
    "propose_call": "Propose: rest of the call",
    "target_queue": "target: queue",
    "target_forward": "target: pass",
    "target_sampling": "target: verdict",
    "verify_call": "Verify: rest of the call",
    "between_calls": "between the calls",
}


def section(report: dict[str, Any]) -> str:
    """Return the Markdown section of RESULTS.md."""
    parts = [
        "## Overhead of a round",
        in_words(report),
        _how(report),
        goals(report),
        *(grid.markdown() for grid in grids(report)),
    ]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def grids(report: dict[str, Any]) -> list[Grid]:
    """Return all tables, for a terminal."""
    found = [_pace(report), _breakdown(report)]
    if any(way["ahead"] for way in report["ways"]):
        found.append(_ahead(report))
    if report["grid"]:
        found.append(_cells(report))
    return [*found, cold_grid(report)]


def _how(report: dict[str, Any]) -> str:
    settings, point = report["settings"], report["settings"]["point"]
    said = (
        "The real coordinator, draft, target and Redis over loopback, one answer at a time, with synthetic models: a "
        f"draft pass takes {point['draft_ms']:g} ms, a target pass {point['target_ms']:g} ms, and a draft token stands "
        f"with chance {point['alpha']:g}. {counted(settings['laps'], 'lap')} of one answer of about "
        f"{settings['rounds']} rounds in every way, one after the other with the same seed, beginning with another way "
        "each lap. **Efficiency** is the time that the passes and the added round trips are set to take over the time "
        "of a round. **Expected** speed-ups come from E = (1 − α^(γ+1))/(1 − α) and those times. Medians over laps "
        "with quartiles; speed-ups are against γ = 0 over the same links in the same lap, and **in all** compares all "
        "tokens and all seconds. A round trip is added to every call to a model server, by a link of TCP that takes "
        "time."
    )
    return said + _free(report)


def _free(report: dict[str, Any]) -> str:
    """Say what drafting ahead costs here, where it was measured: nothing."""
    ahead = [way["drafted_ahead"] for way in report["ways"] if way["ahead"]]
    if not ahead:
        return ""
    drafted, used = (_range([found[name] for found in ahead]) for name in ("drafted_a_round", "used_a_round"))
    return (
        " A synthetic pass takes the same time whatever is in it, so tokens that are drafted ahead are free here: "
        f"{drafted} a round were, of which {used} were used. What drafting ahead gains is an upper bound of what a "
        "draft gains whose passes cost more the more is in them."
    )


def _range(values: list[float]) -> str:
    low, high = number(min(values), 1), number(max(values), 1)
    return low if low == high else f"{low}–{high}"


def _pace(report: dict[str, Any]) -> Grid:
    header = ["way", "rounds", "tokens a round", "expected", "ms a round", "expected", "efficiency"]
    header += ["speed-up", "in all", "expected"]
    return Grid("Pace", header, [_pace_row(way) for way in report["ways"]])


def _pace_row(way: dict[str, Any]) -> list[str]:
    return [
        _name(way),
        str(way["rounds"]),
        number(way["tokens_a_round"], 3),
        number(way["expected_tokens_a_round"], 3),
        quartiles(way["round_ms"], 2),
        number(way["expected_round_ms"], 1),
        quartiles(way["efficiency"], 3),
        quartiles(way["speedup"], 3),
        number(way["speedup_in_all"], 3),
        number(way["expected_speedup"], 3),
    ]


def _breakdown(report: dict[str, Any]) -> Grid:
    rows = []
    for way in report["ways"]:
        parts = way["milliseconds"]
        rows.append([_name(way), *(number(parts[part], 2) for part in PARTS), number(sum(parts.values()), 2)])
    return Grid("Where the milliseconds of a round go (means)", ["way", *PARTS.values(), "together"], rows)


def _ahead(report: dict[str, Any]) -> Grid:
    rows = []
    for way in report["ways"]:
        if way["ahead"]:
            found = way["drafted_ahead"]
            row = [_name(way | {"ahead": False}).partition(", ")[2], quartiles(way["gain"], 3)]
            row += [number(found["hit_rate"], 2), number(found["used_a_round"], 2), number(found["drafted_a_round"], 1)]
            rows.append(row)
    header = ["way", "against the sequential way", "hit rate", "tokens used a round", "tokens drafted ahead a round"]
    return Grid("What drafting ahead gains, on the same seeds in the same laps", header, rows)


def _name(way: dict[str, Any]) -> str:
    words = [f"γ {way['gamma']}"]
    if way["gamma"]:
        words.append(way["verification"].upper())
    if way["ahead"]:
        words.append("ahead")
    if way["round_trip_ms"]:
        words.append(f"+{way['round_trip_ms']:g} ms")
    return ", ".join(words)


def _cells(report: dict[str, Any]) -> Grid:
    header = [
        "draft/target, α, added ms",
        "γ",
        "tokens a round",
        "expected",
        "ms a round",
        "expected",
        "speed-up",
        "expected",
    ]
    target_ms = report["settings"]["point"]["target_ms"]
    rows = [
        [
            f"{cell['draft_ms'] / target_ms:.2f}, {cell['alpha']:g}, {cell['round_trip_ms']:g}",
            str(cell["gamma"]),
            number(cell["tokens_a_round"], 2),
            number(cell["expected_tokens_a_round"], 2),
            number(cell["round_ms"]["median"], 1),
            number(cell["expected_round_ms"], 1),
            number(cell["speedup_in_all"], 2),
            number(cell["expected_speedup"], 2),
        ]
        for cell in report["grid"]
        if cell["gamma"]
    ]
    return Grid("Against the arithmetic (verification block)", header, rows)
