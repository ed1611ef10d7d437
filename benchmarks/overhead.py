"""What a round costs beside its forward passes: the real services with synthetic models of set pace.

    python -m benchmarks.overhead
    python -m benchmarks.overhead --laps 20 --write
    python -m benchmarks.overhead --grid-laps 1 --write

At the textbook point a draft pass takes 5 ms, a target pass 30 ms and a draft token stands with chance 0.67: with gamma
5 the arithmetic gives 2.756 tokens a round and 1.503 times the pace of plain decoding. Reported are how much of a
round the models' passes fill, where the rest goes, what is left of the 1.503, and what such work costs on this machine
by itself when it comes after a wait. With --grid-laps the same for other paces, acceptances, gammas and round trips to
the model servers.
"""

import argparse
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from benchmarks.ahead import CountedAsk
from benchmarks.command import (
    Benchmark,
    Report,
    above_zero,
    chance,
    not_negative,
    parse_quick,
    parser_of,
    positive,
    refuse,
    run,
    whole,
)
from benchmarks.far import coordinators, target_addresses
from benchmarks.output import console, progress
from benchmarks.overhead_cold import measure_cold
from benchmarks.overhead_grid import GRID_ANSWERS, measure_grid
from benchmarks.overhead_run import Ask, Point, Way, ask_laps, figures, gain
from benchmarks.overhead_section import grids, section
from benchmarks.recording import Recording, record
from benchmarks.services import Beside, Services, running
from benchmarks.surroundings import surroundings

QUICK = {"laps": 1, "rounds": 8, "round_trip": [10.0], "verification": ["coupled"]}
VERIFICATIONS = ("token", "block", "coupled")
ENVIRONMENT = {"OMP_NUM_THREADS": "1"}  # the tables of synthetic models are small


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured.

    Attributes:
        point: the pair.
        gamma: draft tokens a round, beside 0.
        rounds: of an answer.
        laps: answers of every way.
        verifications: without an added round trip.
        far_verification: with one.
        round_trips_ms: added between the coordinator and each model server, 0 left out.
        ahead_tokens: as DRAFT_AHEAD_TOKENS of a second draft, which drafts while the target verifies; 0: there is none.
        grid_laps: answers of every cell of the grid, 0 to leave it out.
    """

    point: Point
    gamma: int
    rounds: int
    laps: int
    verifications: tuple[str, ...]
    far_verification: str
    round_trips_ms: tuple[float, ...]
    ahead_tokens: int
    grid_laps: int

    @property
    def ways(self) -> list[Way]:
        """The ways of decoding in the order of a lap; those without draft tokens have no verification to choose."""
        found = []
        for round_trip in (0.0, *self.round_trips_ms):
            verifications = (self.far_verification,) if round_trip else self.verifications
            found.append(Way(0, self.verifications[0], round_trip))
            for verification in verifications:
                found += [Way(self.gamma, verification, round_trip, ahead=on) for on in self._ahead]
        return found

    @property
    def _ahead(self) -> list[bool]:
        return [False, True] if self.ahead_tokens else [False]


def measure(options: argparse.Namespace, arguments: list[str]) -> Report:
    """Measure and return the report.

    Raises:
        StartFailed: a process did not start.
        grpc.RpcError: a call failed.
    """
    plan = plan_of(options)
    begun = surroundings("benchmarks.overhead", arguments)
    started = time.monotonic()
    with progress(console()) as bar, running(plan.point.target, plan.point.draft, ENVIRONMENT) as services:
        task = bar.add_task("answers", total=plan.laps * len(plan.ways) + plan.grid_laps * GRID_ANSWERS)
        begun["versions"]["redis-server"] = services.redis
        ways = _measure_ways(services, plan, lambda: bar.advance(task))
        cold = measure_cold(plan.point, plan.gamma, services.system.address("target"))
        grid = []
        if plan.grid_laps:
            grid = measure_grid(services, plan.point.target_ms, plan.rounds, plan.grid_laps, lambda: bar.advance(task))
    report = {"benchmark": "overhead", **begun, "settings": asdict(plan), "seconds": time.monotonic() - started}
    return report | {"ways": ways, "cold": cold, "grid": grid}


def _measure_ways(services: Services, plan: Plan, advance: Callable[[], None]) -> list[dict[str, Any]]:
    with Beside(services) as beside:
        targets = target_addresses(beside, services, plan.round_trips_ms)
        stubs = {0.0: services.stub} | coordinators(beside, services, targets, services.system.address("draft"))
        asks: dict[Way, Ask] = {way: _ask(stubs[way.round_trip_ms]) for way in plan.ways if not way.ahead}
        if plan.ahead_tokens:
            draft = beside.draft(plan.point.draft, {"DRAFT_AHEAD_TOKENS": str(plan.ahead_tokens)})
            everywhere = {0.0: services.system.address("target")} | targets
            stubs = coordinators(beside, services, everywhere, draft.address)
            ahead = [way for way in plan.ways if way.ahead]
            asks |= {way: CountedAsk(_ask(stubs[way.round_trip_ms]), draft.metrics_url) for way in ahead}
        asks = {way: asks[way] for way in plan.ways}  # in the order of a lap
        answers = ask_laps(asks, plan.point.alpha, plan.rounds, plan.laps, advance)
    return [_way(plan, way, asks[way], answers) for way in plan.ways]


def _way(plan: Plan, way: Way, ask: Ask, answers: Mapping[Way, list[Recording]]) -> dict[str, Any]:
    plain = Way(0, plan.verifications[0], way.round_trip_ms)
    found = figures(plan.point, way, answers[way], answers[plain])
    if isinstance(ask, CountedAsk):  # on the same seeds its proposals are the sequential ones: luck does not differ
        found["gain"] = gain(answers[way], answers[replace(way, ahead=False)], way.gamma)
        found["drafted_ahead"] = ask.figures(sum(len(answer.rounds) for answer in answers[way]))
    return found


def _ask(stub: Any) -> Ask:
    return lambda request: record(stub, request)


def plan_of(options: argparse.Namespace) -> Plan:
    """Return what the options ask for."""
    return Plan(
        point=Point(options.draft_ms, options.target_ms, options.alpha),
        gamma=options.gamma,
        rounds=options.rounds,
        laps=options.laps,
        verifications=tuple(options.verification),
        far_verification=options.far_verification,
        round_trips_ms=tuple(sorted({one for one in options.round_trip if one})),
        ahead_tokens=options.ahead_tokens,
        grid_laps=options.grid_laps,
    )


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = parser_of("overhead", __doc__)
    refuse(
        parser, ["--pair", "--target", "--draft"], "overhead measures synthetic models of its own, so it takes no pair"
    )
    add = parser.add_argument
    add("--draft-ms", type=not_negative, default=5.0, help="of a draft pass (%(default)s)")
    add("--target-ms", type=above_zero, default=30.0, help="of a target pass (%(default)s)")
    add("--alpha", type=chance, default=0.67, help="chance that a draft token stands (%(default)s)")
    add("--gamma", type=positive, default=5, help="draft tokens a round, beside 0 (%(default)s)")
    add("--rounds", type=positive, default=40, help="of an answer (%(default)s)")
    add("--laps", type=positive, default=8, help="answers of every way (%(default)s)")
    add("--verification", nargs="+", choices=VERIFICATIONS, default=list(VERIFICATIONS), help="(all)")
    add("--far-verification", choices=VERIFICATIONS, default="coupled", help="with a round trip (%(default)s)")
    add("--round-trip", nargs="+", type=not_negative, default=[1.0, 10.0, 50.0], help="milliseconds added (1 10 50)")
    add("--ahead-tokens", type=whole, default=32, help="of a pass of a draft that drafts ahead; 0: none (%(default)s)")
    add("--grid-laps", type=whole, default=0, help="over the grid, ten minutes each (%(default)s)")
    return parse_quick(parser, arguments, QUICK)


def main(arguments: list[str]) -> int:
    """Measure, or read what was measured; print, and write if wanted."""
    return run(Benchmark("overhead", parse, measure, lambda _: "overhead", section, grids), arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
