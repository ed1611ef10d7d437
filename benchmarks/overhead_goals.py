"""What the ``overhead`` benchmark says of its goals: by how much they are met or missed, and what stands in the way."""

from typing import Any

from benchmarks.output import Grid
from benchmarks.overhead_cold import BUSY, ITSELF, SLEEP, floor_ms
from benchmarks.wording import number, quartiles

EFFICIENCY = {5: 0.97, 0: 0.95}  # by gamma, at the textbook point
AHEAD_GAIN = 1.25
REASON = (
    "What is not used for a few milliseconds is slow the next time on this machine, even on a core that was busy all "
    "the while: the last table has the same code in one process. A service runs for a millisecond and then waits for a "
    "pass, so all of its work is of that kind."
)


def goals(report: dict[str, Any]) -> str:
    """Return the paragraph that compares the near ways with the goals."""
    near = [way for way in report["ways"] if not way["round_trip_ms"]]
    said = [_efficiency(report, way) for way in near if way["gamma"] in EFFICIENCY and not way["ahead"]]
    said += [_gain(way) for way in near if way["ahead"]]
    return "Goals: " + " ".join(said) + " " + REASON


def cold_grid(report: dict[str, Any]) -> Grid:
    """Lay out what a wait makes of the same work."""
    by_work: dict[str, list[dict[str, Any]]] = {}
    for entry in report["cold"]:
        by_work.setdefault(entry["what"], []).append(entry)
    rows = [
        [f"{what}, {entries[-1]['wait_ms']:g} ms", *(quartiles(entry["milliseconds"], 2) for entry in entries)]
        for what, entries in by_work.items()
    ]
    header = ["work, wait", f"after {ITSELF}", f"after {BUSY}", f"after {SLEEP}"]
    return Grid("Milliseconds that the same work takes right after itself and after a wait", header, rows)


def _efficiency(report: dict[str, Any], way: dict[str, Any]) -> str:
    goal, found = EFFICIENCY[way["gamma"]], way["efficiency"]["median"]
    name = f"γ {way['gamma']}" + (f" {way['verification'].upper()}" if way["gamma"] else "")
    if found >= goal:
        return f"{name} is {found:.3f} efficient, which meets {goal}."
    took = sum(way["milliseconds"].values())
    room = way["expected_round_ms"] * (1 / goal - 1)
    cold, warm = (floor_ms(report["cold"], way["gamma"], after) for after in (SLEEP, ITSELF))
    return (
        f"{name} is {found:.3f} efficient and misses {goal}: {number(took - way['expected_round_ms'], 1)} ms beside "
        f"the passes where {number(room, 1)} would do; its draws, its verdict and as many calls that do nothing take "
        f"{number(cold, 1)} ms after a wait and {number(warm, 1)} ms right after each other."
    )


def _gain(way: dict[str, Any]) -> str:
    found = way["gain"]["median"]
    met = "meets" if found >= AHEAD_GAIN else "misses"
    name = way["verification"].upper()
    return f"Drafting ahead with {name} is {found:.2f} times the sequential pace, which {met} {AHEAD_GAIN}."
