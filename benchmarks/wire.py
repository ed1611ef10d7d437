"""What a round weighs and costs beside the models: bytes and CPU time against context and k, and rounds a core.

    python -m benchmarks.wire
    python -m benchmarks.wire --write

The real services answer over loopback with instant synthetic models. Bytes must not depend on the context.
"""

import argparse
import random
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.command import Benchmark, Report, above_zero, parse_quick, parser_of, positive, refuse, run
from benchmarks.output import console, progress
from benchmarks.services import Beside, Services, running
from benchmarks.surroundings import surroundings
from benchmarks.wire_messages import weigh
from benchmarks.wire_run import measure_carried, measure_rounds, pid_of
from benchmarks.wire_section import grids, section

QUICK = {"context": [100, 2000], "support": [64], "rounds": 50, "seconds": 2.0}
VOCABULARY = 20_000  # ids of up to three bytes, as large vocabularies have them
WEIGHED_ROUNDS = 20


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured.

    Attributes:
        gamma: draft tokens a round.
        contexts: lengths of the prompts, in tokens.
        support_sizes: k of the drafts.
        rounds: of an answer, about.
        weighed_rounds: whose messages are weighed.
        sessions: that keep each coordinator busy.
        seconds: of each run of busy coordinators.
    """

    gamma: int
    contexts: tuple[int, ...]
    support_sizes: tuple[int, ...]
    rounds: int
    weighed_rounds: int
    sessions: int
    seconds: float

    @property
    def model(self) -> str:
        """The target: a draft of it adds what they agree on."""
        context = max(self.contexts) + 20 * self.rounds
        return f"synthetic:vocabulary={VOCABULARY},seed=1,context={context}"

    @property
    def environment(self) -> dict[str, str]:
        """Of the services: room for the longest context twice."""
        room = str(4 * (max(self.contexts) + 20 * self.rounds))
        return {"OMP_NUM_THREADS": "1", "TARGET_CACHE_TOKENS": room, "DRAFT_CACHE_TOKENS": room}


def measure(options: argparse.Namespace, arguments: list[str]) -> Report:
    """Measure and return the report.

    Raises:
        StartFailed: a process did not start.
        grpc.RpcError: a call failed.
    """
    plan = plan_of(options)
    begun = surroundings("benchmarks.wire", arguments)
    started = time.monotonic()
    with progress(console()) as bar:
        task = bar.add_task("runs", total=len(plan.support_sizes) + 4)
        cells, redis = _measure_cells(plan, lambda: bar.advance(task))
        carried = _measure_carried(plan, lambda: bar.advance(task))
    begun["versions"]["redis-server"] = redis
    report = {"benchmark": "wire", **begun, "settings": asdict(plan), "seconds": time.monotonic() - started}
    return report | {"cells": cells, "carried": carried}


def _measure_cells(plan: Plan, advance: Callable[[], None]) -> tuple[list[dict[str, Any]], str]:
    draft_model = f"{plan.model},agreement=0.67"
    cells = []
    with running(plan.model, draft_model, plan.environment) as services:
        for support_size in plan.support_sizes:
            with Beside(services) as beside:
                draft = beside.draft(draft_model, {"DRAFT_SUPPORT_SIZE": str(support_size)})
                cells += _cells(plan, services, support_size, (draft.address, draft.pid))
            advance()
        return cells, services.redis


def _cells(plan: Plan, services: Services, support_size: int, draft: tuple[str, int]) -> list[dict[str, Any]]:
    draws = random.Random(1)
    prompts = [[draws.randrange(VOCABULARY) for _ in range(length)] for length in plan.contexts]
    target = services.system.address("target")
    measured = measure_rounds(services, draft, prompts, plan.gamma, plan.rounds)
    return [
        {
            "support_size": support_size,
            **cell,
            "messages": weigh(draft[0], target, prompt, plan.gamma, plan.weighed_rounds),
        }
        for prompt, cell in zip(prompts, measured, strict=True)
    ]


def _measure_carried(plan: Plan, advance: Callable[[], None]) -> list[dict[str, Any]]:
    target, found = "synthetic:seed=1", []
    with running(target, f"{target},agreement=0.67", {"OMP_NUM_THREADS": "1"}) as services, Beside(services) as beside:
        system = services.system
        second, _ = beside.coordinator(system.address("target"), system.address("draft"), system.address("redis"))
        one = {system.address("coordinator"): pid_of(services, "coordinator")}
        for gamma in (plan.gamma, 0):
            for coordinators in (one, one | {second.address: second.pid}):
                found.append(measure_carried(services, coordinators, gamma, plan.sessions, plan.seconds))
                advance()
    return found


def plan_of(options: argparse.Namespace) -> Plan:
    """Return what the options ask for."""
    return Plan(
        gamma=options.gamma,
        contexts=tuple(sorted(set(options.context))),
        support_sizes=tuple(sorted(set(options.support))),
        rounds=options.rounds,
        weighed_rounds=WEIGHED_ROUNDS,
        sessions=options.sessions,
        seconds=options.seconds,
    )


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = parser_of("wire", __doc__)
    refuse(parser, ["--pair", "--target", "--draft"], "wire measures synthetic models of its own, so it takes no pair")
    add = parser.add_argument
    add("--gamma", type=positive, default=5, help="draft tokens a round (%(default)s)")
    add("--context", nargs="+", type=positive, default=[100, 1000, 4000, 8000], help="tokens (100 1000 4000 8000)")
    add("--support", nargs="+", type=positive, default=[1, 8, 64], help="k of the draft (1 8 64)")
    add("--rounds", type=positive, default=200, help="of an answer (%(default)s)")
    add("--sessions", type=positive, default=8, help="that keep each coordinator busy (%(default)s)")
    add("--seconds", type=above_zero, default=10.0, help="of each run of busy coordinators (%(default)s)")
    return parse_quick(parser, arguments, QUICK)


def main(arguments: list[str]) -> int:
    """Measure, or read what was measured; print, and write if wanted."""
    return run(Benchmark("wire", parse, measure, lambda _: "wire", section, grids), arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
