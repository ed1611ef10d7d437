"""What the ``overhead`` benchmark says of its goals: by how much they are met or missed, and what stands in the way."""

from dataclasses import asdict
from typing import Any

from benchmarks.output import Grid
from benchmarks.overhead_cold import BUSY, ITSELF, SLEEP, floor_ms
from benchmarks.overhead_run import Point
from benchmarks.wording import number, quartiles, said_of_goals

TEXTBOOK = Point(draft_ms=5.0, target_ms=30.0, alpha=0.67)
TEXTBOOK_GAMMA = 5
EFFICIENCY = {TEXTBOOK_GAMMA: 0.97, 0: 0.95}  # by gamma, at the textbook point
AHEAD_GAIN = 1.25  # there, too
SPENT = {
    "draws": ("draft_sampling",),
    "the verdict": ("target_sampling",),
    "the rest of the calls": ("propose_call", "verify_call"),
    "queues": ("draft_queue", "target_queue"),
    "what lies between the calls": ("between_calls",),
}
PASSES = ("draft_forward", "target_forward")
SHOWN_MS = 0.05  # less would be shown as 0.0


def goals(report: dict[str, Any]) -> str:
    """Return the list that compares the near ways with the goals, with what was measured where one is missed."""
    if report["settings"]["point"] != asdict(TEXTBOOK):
        return "There are goals for the textbook point alone, and this is another."
    near = [way for way in report["ways"] if not way["round_trip_ms"]]
    sequential = [way for way in near if way["gamma"] in EFFICIENCY and not way["ahead"]]
    said = [_efficiency(report, way) for way in sequential]
    said += [_gain(way) for way in near if way["ahead"] and way["gamma"] == TEXTBOOK_GAMMA]
    if any(way["efficiency"]["median"] < EFFICIENCY[way["gamma"]] for way in sequential):
        said += _slow_after_a_wait(report)
    return said_of_goals(said)


def cold_grid(report: dict[str, Any]) -> Grid:
    """Lay out what a wait makes of the same work."""
    rows = [
        [
            f"{what}, {entries[SLEEP]['wait_ms']:g} ms",
            *(quartiles(entries[after]["milliseconds"], 2) for after in entries),
        ]
        for what, entries in _by_work(report).items()
    ]
    header = ["work, wait", f"after {ITSELF}", f"after {BUSY}", f"after {SLEEP}"]
    return Grid("Milliseconds that the same work takes right after itself and after a wait", header, rows)


def _by_work(report: dict[str, Any]) -> dict[str, dict[str, dict[str, Any]]]:
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for entry in report["cold"]:
        found.setdefault(entry["what"], {})[entry["after"]] = entry
    return found


def _efficiency(report: dict[str, Any], way: dict[str, Any]) -> str:
    goal, found = EFFICIENCY[way["gamma"]], way["efficiency"]["median"]
    name = f"γ {way['gamma']}" + (f" {way['verification'].upper()}" if way["gamma"] else "")
    if found >= goal:
        return f"{name} is {found:.3f} efficient, which meets {goal}."
    took = sum(way["milliseconds"].values())
    room = way["expected_round_ms"] * (1 / goal - 1)
    busy, itself = (floor_ms(report["cold"], way, after) for after in (BUSY, ITSELF))
    work = "draws, verdict and calls" if way["gamma"] else "verdict and call"
    return (
        f"{name} is {found:.3f} efficient and misses {goal}: {number(took - way['expected_round_ms'], 1)} ms beside "
        f"the passes where {number(room, 1)} would do, namely {_spent(way)}. Its {work}, done apart, "
        "or in the rounds where that was less, with calls "
        f"that do nothing, take at least {number(busy, 1)} ms after a wait and {number(itself, 1)} right after each "
        "other."
    )


def _spent(way: dict[str, Any]) -> str:
    """Say what the milliseconds beside the passes were spent on."""
    took = way["milliseconds"]
    spent = {name: sum(took[part] for part in parts) for name, parts in SPENT.items()}
    spent["passes longer than they are set to"] = sum(took[part] for part in PASSES) - way["expected_round_ms"]
    return ", ".join(f"{number(ms, 1)} {name}" for name, ms in spent.items() if abs(ms) >= SHOWN_MS)


def _slow_after_a_wait(report: dict[str, Any]) -> list[str]:
    """Say by how much work slows after a wait in which its core was not even idle; nothing where quartiles overlap."""
    slower = []
    for what, entries in _by_work(report).items():
        itself, busy = entries[ITSELF]["milliseconds"], entries[BUSY]["milliseconds"]
        if busy["low"] > itself["high"]:
            slower.append(f"{what} {number(busy['median'] / itself['median'], 1)}")
    if not slower:
        return []
    return [
        "A service waits for every pass, and what comes after a wait is slow on this machine even on a core that was "
        f"busy all the while: done apart, it takes so many times what it takes right after itself: {'; '.join(slower)}."
    ]


def _gain(way: dict[str, Any]) -> str:
    found = way["gain"]["median"]
    name = way["verification"].upper()
    said = f"Drafting ahead with {name} is {found:.2f} times the sequential pace, which"
    if found >= AHEAD_GAIN:
        return f"{said} meets {AHEAD_GAIN}."
    ahead = way["drafted_ahead"]
    return (
        f"{said} misses {AHEAD_GAIN}: {100 * ahead['hit_rate']:.0f} % of the proposals were there already, and "
        f"{number(ahead['used_a_round'], 1)} tokens a round need not be drafted."
    )
