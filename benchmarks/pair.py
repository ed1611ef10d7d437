"""What speculation gains with a pair of models, for each draft, kind of prompt, temperature and gamma.

    python -m benchmarks.pair --pair smollm2
    python -m benchmarks.pair --pair qwen2.5-coder --laps 2 --temperature 0 --gamma 4 --max-new-tokens 32
    python -m benchmarks.pair --target Qwen/Qwen3-4B --draft Qwen/Qwen3-0.6B --draft lookup:
    python -m benchmarks.pair --from pair.json --write

The real services answer over loopback, one system a draft. One JSON object goes to standard output, a table to a
terminal; with --write the pair's section of benchmarks/RESULTS.md is made anew.
"""

import argparse
import sys
import time
from dataclasses import asdict
from typing import Any

from google.protobuf.json_format import MessageToDict

from benchmarks.command import Benchmark, Report, not_negative, parse_quick, parser_of, positive, run
from benchmarks.output import console, progress
from benchmarks.pair_run import Case, DraftRun, Plan, run_draft
from benchmarks.pair_section import grids, section
from benchmarks.prompts import PROMPTS
from benchmarks.recording import Recording
from benchmarks.results import check_name
from benchmarks.speculation import pace_figures, pass_seconds, speculation_figures
from benchmarks.surroundings import surroundings, usable_cores
from deploy.pairs import DEFAULT_PAIR, LOOKUP, PAIRS, SYNTHETIC, prepare

ALL = "all"
# A first look.
QUICK = {"laps": 1, "gamma": [4], "temperature": [0.0], "max_new_tokens": 24}


def measure(options: argparse.Namespace, arguments: list[str]) -> Report:
    """Measure every draft and return the report.

    Raises:
        StartFailed: a system did not start.
        grpc.RpcError: a call failed.
    """
    plan = plan_of(options)
    prepare(plan.target, *plan.drafts)
    begun = surroundings("benchmarks.pair", arguments)
    started = time.monotonic()
    terminal = console()
    runs: list[DraftRun] = []
    with progress(terminal) as bar:
        task = bar.add_task("answers", total=plan.answers * len(plan.drafts))

        def tell(seconds: float) -> None:
            left = len(plan.drafts) - len(runs)
            name = plan.drafts[len(runs)]
            bar.console.print(f"{name}: about {seconds / 60:.1f} minutes; {left - 1} more drafts follow")

        for draft in plan.drafts:
            runs.append(run_draft(plan, draft, tell, lambda: bar.advance(task)))
    report = {"benchmark": "pair", "pair": options.name, **begun, "settings": asdict(plan)}
    report["versions"]["redis-server"] = runs[0].redis
    report["models"] = {"target": _model(runs[0].models.model)}
    report["seconds"] = time.monotonic() - started
    report["drafts"] = [draft_report(plan, draft, run) for draft, run in zip(plan.drafts, runs, strict=True)]
    return report


def draft_report(plan: Plan, draft: str, run: DraftRun) -> dict[str, Any]:
    """Sum up what came of a draft."""
    greedy = [case for case in run.answers if case.temperature == 0]
    recordings = [answer for by_gamma in run.answers.values() for answer in by_gamma.values()]
    passes = [{"tokens": tokens, "milliseconds": 1000 * took} for tokens, took in pass_seconds(recordings).items()]
    return {
        "draft": draft,
        "model": _model(run.models.draft),
        "passes": passes,
        "greedy_compared": len(greedy) * (len(plan.gammas) - 1),
        "differences": run.differences,
        "cells": [
            cell(run.answers, kind, temperature, gamma)
            for kind in (*plan.kinds, ALL)
            for temperature in plan.temperatures
            for gamma in plan.gammas
        ],
    }


def cell(answers: dict[Case, dict[int, Recording]], kind: str, temperature: float, gamma: int) -> dict[str, Any]:
    """Sum up the answers of one kind ("all": of every kind) at one temperature and gamma."""
    chosen = [
        by_gamma for case, by_gamma in answers.items() if case.temperature == temperature and kind in (case.kind, ALL)
    ]
    figures = {"kind": kind, "temperature": temperature, "gamma": gamma}
    figures |= pace_figures([by_gamma[gamma] for by_gamma in chosen])
    if gamma:
        figures |= speculation_figures([(by_gamma[0], by_gamma[gamma]) for by_gamma in chosen])
    return figures


def plan_of(options: argparse.Namespace) -> Plan:
    """Return what the options ask for; gamma 0 is always among it."""
    return Plan(
        target=options.target,
        drafts=tuple(options.draft),
        kinds=tuple(options.kind),
        laps=options.laps,
        temperatures=tuple(options.temperature),
        gammas=tuple(sorted({0, *options.gamma})),
        max_new_tokens=options.max_new_tokens,
        verification=options.verification,
        threads=options.threads,
        seed=options.seed,
        plain=options.plain or options.target.startswith(SYNTHETIC),  # those have no chat template
        ignore_eos=options.ignore_eos,
    )


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = _parser()
    options = parse_quick(parser, arguments, QUICK)
    pair = PAIRS[options.pair]
    # A named draft fits its own target; a lookup fits every one.
    usual = [LOOKUP] if options.target else [pair.draft, LOOKUP, LOOKUP + pair.draft]
    options.name = options.name or options.target or options.pair
    options.draft = options.draft or usual
    options.target = options.target or pair.target
    try:
        check_name(options.name)
    except ValueError as error:
        parser.error(f"--name: {error}")
    return options


def _parser() -> argparse.ArgumentParser:
    parser = parser_of("pair", __doc__)
    add = parser.add_argument
    add("--pair", choices=PAIRS, default=DEFAULT_PAIR, help="target and draft by name (%(default)s)")
    add("--target", help="in place of the pair's")
    add("--draft", action="append", help="repeat for several (the pair's, a lookup, a lookup before the pair's)")
    add("--name", help="of the section in RESULTS.md (the pair's, or that of another target)")
    add("--kind", nargs="+", choices=list(PROMPTS), default=list(PROMPTS), help="of prompts (all)")
    add(
        "--laps",
        type=positive,
        default=2,
        help="prompts of each kind; beyond four, again with other seeds (%(default)s)",
    )
    add("--gamma", nargs="+", type=positive, default=[2, 4, 8], help="draft tokens a round, beside 0 (2 4 8)")
    add("--temperature", nargs="+", type=not_negative, default=[0.0, 0.7], help="(0 0.7)")
    add("--max-new-tokens", type=positive, default=40, help="of an answer (%(default)s)")
    add("--verification", choices=["token", "block", "coupled"], default="block", help="(%(default)s)")
    add("--threads", type=positive, default=usable_cores(), help="of each model server (the cores: %(default)s)")
    add("--seed", type=int, default=1, help="of the first prompts (%(default)s)")
    add("--plain", action="store_true", help="send prompts without a chat template")
    add("--ignore-eos", action="store_true", help="end answers by length alone")
    return parser


def _model(info: Any) -> dict[str, Any]:
    facts: dict[str, Any] = MessageToDict(info, preserving_proto_field_name=True)
    return facts


def main(arguments: list[str]) -> int:
    """Measure, or read what was measured; print, and write if wanted."""
    return run(Benchmark(parse, measure, lambda report: f"pair:{report['pair']}", section, grids), arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
