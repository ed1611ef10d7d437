"""What many sessions at once get: tokens a second in all, and how long each waits.

    python -m benchmarks.load
    python -m benchmarks.load --pair smollm2 --sessions 1 4 16 --max-new-tokens 32 --seconds 30
    python -m benchmarks.load --from load.json --write

The real services answer over loopback: without speculation, with a fixed gamma, and with the gamma they choose. Closed
loop: so many sessions ask again and again. Open loop: requests arrive as a Poisson process, whatever runs already.
Without models named, synthetic ones of set pace answer. How long it takes is set by its flags, not by the models.
"""

import argparse
import asyncio
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.command import Benchmark, Report, above_zero, not_negative, parse_quick, parser_of, positive, run
from benchmarks.load_figures import load_figures
from benchmarks.load_goals import CLOSED
from benchmarks.load_run import Answered, Loading, Requests, asynchronous_stubs, closed_loop, open_loop
from benchmarks.load_section import OPEN, grids, section
from benchmarks.output import console, progress
from benchmarks.prompts import PROMPTS
from benchmarks.results import check_name
from benchmarks.services import Services, running
from benchmarks.surroundings import surroundings, usable_cores
from benchmarks.ways import PLAIN, speculation, way_name
from deploy.pairs import LOOKUP, PAIRS, SYNTHETIC, Pair, prepare
from specdec.v1 import common_pb2, generation_pb2

# A target whose pass costs more the more is in it, so that speculation stops to pay where sessions are many.
PACED = Pair(
    target="synthetic:seed=1,pass_ms=60,token_ms=1", draft="synthetic:seed=1,agreement=0.8,pass_ms=8,token_ms=0.1"
)
QUICK = {"sessions": [1, 8], "share": [0.5], "seconds": 4.0, "laps": 1}
QUESTIONS = [prompt for four in zip(*PROMPTS.values(), strict=False) for prompt in four]


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured.

    Attributes:
        target: the target's model.
        draft: the draft's model.
        gammas: of the ways, None being the services' own choice; 0 is the first.
        sessions: that ask again and again, one number a load.
        shares: of the rate that plain decoding served at most, one a load of arriving requests.
        seconds: of every load in every way.
        laps: times that everything is done.
        max_new_tokens: of an answer.
        temperature: 0 is greedy.
        verification: token, block or coupled.
        threads: of each model server.
        seed: of the arrivals.
        plain: prompts go without a chat template.
        ignore_eos: answers end at max_new_tokens alone.
    """

    target: str
    draft: str
    gammas: tuple[int | None, ...]
    sessions: tuple[int, ...]
    shares: tuple[float, ...]
    seconds: float
    laps: int
    max_new_tokens: int
    temperature: float
    verification: str
    threads: int
    seed: int
    plain: bool
    ignore_eos: bool

    @property
    def runs(self) -> int:
        """Runs of plan.seconds in all."""
        return (len(self.sessions) + len(self.shares)) * len(self.gammas) * self.laps

    @property
    def environment(self) -> dict[str, str]:
        """Of the services: room for twice as many sessions, so that finished ones need not go first."""
        room = str(max(64, 2 * max(self.sessions)))
        names = ("TARGET_MAX_SESSIONS", "DRAFT_MAX_SESSIONS")
        return {"OMP_NUM_THREADS": str(self.threads)} | dict.fromkeys(names, room)


Key = tuple[str, float, int | None]
"""Kind of load, how much of it, gamma."""


def measure(options: argparse.Namespace, arguments: list[str]) -> Report:
    """Measure and return the report.

    Raises:
        StartFailed: the system did not start.
        grpc.RpcError: a call failed.
    """
    plan = plan_of(options)
    prepare(plan.target, plan.draft)
    begun = surroundings("benchmarks.load", arguments)
    started = time.monotonic()
    with progress(console()) as bar, running(plan.target, plan.draft, plan.environment) as services:
        task = bar.add_task(f"loads of {plan.seconds:g} s", total=plan.runs)
        begun["versions"]["redis-server"] = services.redis
        found = asyncio.run(_measure(services, plan, lambda: bar.advance(task)))
    report = {"benchmark": "load", "name": options.name, **begun, "settings": asdict(plan)}
    return report | {"seconds": time.monotonic() - started, "cells": cells(found, plan.seconds)}


async def _measure(services: Services, plan: Plan, advance: Callable[[], None]) -> dict[Key, list[list[Answered]]]:
    found: dict[Key, list[list[Answered]]] = {}

    async def put_on(kind: str, load: float, lap: int) -> None:
        first = lap % len(plan.gammas)
        for gamma in (*plan.gammas[first:], *plan.gammas[:first]):
            loading = Loading(stubs, requests(plan, gamma))
            if kind == CLOSED:
                await closed_loop(loading, int(load), plan.seconds)
            else:
                await open_loop(loading, load, plan.seed + lap, plan.seconds)
            found.setdefault((kind, load, gamma), []).append(loading.answers)
            advance()

    async with asynchronous_stubs([services.system.address("coordinator")]) as stubs:
        for lap in range(plan.laps):
            for sessions in plan.sessions:
                await put_on(CLOSED, sessions, lap)
        most = max(cell["tokens_a_second"] for cell in cells(found, plan.seconds) if cell["way"] == PLAIN)
        for lap in range(plan.laps):
            for share in plan.shares:
                await put_on(OPEN, share * most / plan.max_new_tokens, lap)
    return found


def cells(found: dict[Key, list[list[Answered]]], seconds: float) -> list[dict[str, Any]]:
    """Sum up every load in every way; each load was put on plain decoding, too."""
    figures = {key: load_figures(runs, seconds) for key, runs in found.items()}
    return [
        {
            "kind": kind,
            "load": load,
            "way": way_name(gamma),
            **figures[kind, load, gamma],
            **_against(figures[kind, load, gamma], figures[kind, load, 0]),
        }
        for kind, load, gamma in sorted(found, key=lambda key: key[:2])
    ]


def _against(figures: dict[str, Any], plain: dict[str, Any]) -> dict[str, Any]:
    """Compare with plain decoding lap by lap; with nothing where it brought nothing."""
    paces = zip(figures["tokens_a_second_by_run"], plain["tokens_a_second_by_run"], strict=True)
    ratios = [pace / other for pace, other in paces if other]
    return {"against_plain": statistics.median(ratios) if ratios else None, "against_plain_by_run": ratios}


def requests(plan: Plan, gamma: int | None) -> Requests:
    """Return the requests of a way: the questions in turns, unseeded, as users ask."""
    sampling = common_pb2.SamplingParams(temperature=plan.temperature, max_new_tokens=plan.max_new_tokens)
    if plan.ignore_eos:
        sampling.ignore_eos = True

    def request(number: int) -> generation_pb2.GenerateRequest:
        text = QUESTIONS[number % len(QUESTIONS)]
        return generation_pb2.GenerateRequest(
            prompt=text if plan.plain else "",
            messages=[] if plan.plain else [generation_pb2.ChatMessage(role="user", content=text)],
            sampling_params=sampling,
            speculation=speculation(gamma, plan.verification),
        )

    return request


def plan_of(options: argparse.Namespace) -> Plan:
    """Return what the options ask for."""
    synthetic = options.target.startswith(SYNTHETIC)  # those have no chat template, and an end that means nothing
    return Plan(
        target=options.target,
        draft=options.draft,
        gammas=(0, *sorted(set(options.gamma)), None),
        sessions=tuple(sorted(set(options.sessions))),
        shares=tuple(sorted(set(options.share))),
        seconds=options.seconds,
        laps=options.laps,
        max_new_tokens=options.max_new_tokens,
        temperature=options.temperature,
        verification=options.verification,
        threads=options.threads,
        seed=options.seed,
        plain=options.plain or synthetic,
        ignore_eos=options.ignore_eos or synthetic,
    )


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = parser_of("load", __doc__)
    add = parser.add_argument
    add("--pair", choices=PAIRS, help="target and draft by name (synthetic ones)")
    add("--target", help="in place of the pair's; alone, a lookup drafts")
    add("--draft", help="in place of the pair's")
    add("--name", help="of the section in RESULTS.md (the pair's, or that of another target)")
    add("--sessions", nargs="+", type=positive, default=[1, 4, 16, 64], help="of the closed loop (1 4 16 64)")
    add("--share", nargs="+", type=above_zero, default=[0.5, 0.8], help="of what gamma 0 can serve (0.5 0.8)")
    add("--gamma", nargs="+", type=positive, default=[4], help="draft tokens a round, beside 0 and adaptive (4)")
    add("--seconds", type=above_zero, default=12.0, help="of every load in every way (%(default)s)")
    add("--laps", type=positive, default=2, help="over everything (%(default)s)")
    add("--max-new-tokens", type=positive, default=32, help="of an answer (%(default)s)")
    add("--temperature", type=not_negative, default=1.0, help="(%(default)s)")
    add("--verification", choices=["token", "block", "coupled"], default="block", help="(%(default)s)")
    add("--threads", type=positive, default=usable_cores(), help="of each model server (the cores: %(default)s)")
    add("--seed", type=int, default=1, help="of the arrivals (%(default)s)")
    add("--plain", action="store_true", help="send prompts without a chat template")
    add("--ignore-eos", action="store_true", help="end answers by length alone")
    options = parse_quick(parser, arguments, QUICK)
    pair = PAIRS[options.pair] if options.pair else PACED
    options.name = options.name or options.target or options.pair or "synthetic"
    options.draft = options.draft or (LOOKUP if options.target else pair.draft)
    options.target = options.target or pair.target
    try:
        check_name(options.name)
    except ValueError as error:
        parser.error(f"--name: {error}")
    return options


def main(arguments: list[str]) -> int:
    """Measure, or read what was measured; print, and write if wanted."""
    return run(Benchmark("load", parse, measure, lambda report: f"load:{report['name']}", section, grids), arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
