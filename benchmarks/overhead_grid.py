"""The grid of the ``overhead`` benchmark: other paces, acceptances, gammas and round trips against the arithmetic."""

from collections.abc import Callable, Mapping
from itertools import product
from typing import Any

from benchmarks.far import coordinators, target_addresses
from benchmarks.overhead_run import Ask, Point, Way, ask_laps, figures
from benchmarks.recording import record
from benchmarks.services import Beside, Services

DRAFT_MS = (1.0, 5.0, 15.0)
ALPHAS = (0.5, 0.67, 0.9)
GAMMAS = (0, 1, 3, 5, 8)
ROUND_TRIPS_MS = (0.0, 1.0, 10.0, 50.0)
WAYS = [Way(gamma, "block", round_trip) for round_trip, gamma in product(ROUND_TRIPS_MS, GAMMAS)]
GRID_ANSWERS = len(DRAFT_MS) * len(ALPHAS) * len(WAYS)
KEPT = (
    "gamma",
    "round_trip_ms",
    "rounds",
    "tokens_a_round",
    "expected_tokens_a_round",
    "round_ms",
    "expected_round_ms",
    "efficiency",
    "speedup_in_all",
    "expected_speedup",
)


def measure_grid(
    services: Services, target_ms: float, rounds: int, laps: int, advance: Callable[[], None]
) -> list[dict[str, Any]]:
    """Measure one draft after the other beside the system's target.

    Args:
        services: whose target is used.
        target_ms: of its pass.
        rounds: of an answer.
        laps: answers of every cell.
        advance: is called after each answer.

    Returns:
        One cell a draft, gamma and round trip; gamma 0 is measured with every draft, in the same laps.
    """
    found = []
    with Beside(services) as links:
        targets = target_addresses(links, services, ROUND_TRIPS_MS)
        for draft_ms, alpha in product(DRAFT_MS, ALPHAS):
            point = Point(draft_ms, target_ms, alpha)
            with Beside(services) as beside:
                stubs = coordinators(beside, services, targets, beside.draft(point.draft, {}).address)
                found += _cells(point, stubs, rounds, laps, advance)
    return found


def _cells(
    point: Point, stubs: Mapping[float, Any], rounds: int, laps: int, advance: Callable[[], None]
) -> list[dict[str, Any]]:
    answers = ask_laps({way: _ask(stubs[way.round_trip_ms]) for way in WAYS}, point.alpha, rounds, laps, advance)
    cells = []
    for way, recordings in answers.items():
        plain = answers[Way(0, way.verification, way.round_trip_ms)]
        summed = figures(point, way, recordings, plain)
        cells.append({"draft_ms": point.draft_ms, "alpha": point.alpha} | {name: summed[name] for name in KEPT})
    return cells


def _ask(stub: Any) -> Ask:
    return lambda request: record(stub, request)
