"""Coordinators that are far from the model servers: links that take time lie between."""

from collections.abc import Iterable, Mapping
from typing import Any

from benchmarks.services import Beside, Services


def target_addresses(beside: Beside, services: Services, round_trips_ms: Iterable[float]) -> dict[float, str]:
    """Return where the system's target is found, by the milliseconds that lie between."""
    target = services.system.address("target")
    return {round_trip: _away(beside, target, round_trip) for round_trip in round_trips_ms}


def coordinators(beside: Beside, services: Services, targets: Mapping[float, str], draft: str) -> dict[float, Any]:
    """Start a coordinator at each distance from a draft and the target, all on the system's Redis.

    Returns:
        Their stubs by the milliseconds.
    """
    store = services.system.address("redis")
    return {
        round_trip: beside.coordinator(target, _away(beside, draft, round_trip), store)[1]
        for round_trip, target in targets.items()
    }


def _away(beside: Beside, address: str, round_trip_ms: float) -> str:
    return beside.link(address, round_trip_ms) if round_trip_ms else address
