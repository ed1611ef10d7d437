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
from json import loads
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.json_format import MessageToDict

from benchmarks.output import console, emit, progress, rounded
from benchmarks.pair_run import Case, DraftRun, Plan, run_draft
from benchmarks.pair_section import grids, section
from benchmarks.prompts import PROMPTS
from benchmarks.recording import Recording
from benchmarks.results import RESULTS, check_name, write_section
from benchmarks.speculation import pace_figures, pass_seconds, speculation_figures
from benchmarks.surroundings import surroundings, usable_cores
from client.failures import from_rpc_error
from deploy.pairs import DEFAULT_PAIR, LOOKUP, PAIRS, SYNTHETIC, prepare
from deploy.process import StartFailed

ALL = "all"
# A first look.
QUICK = {"laps": 1, "gamma": [4], "temperature": [0.0], "max_new_tokens": 24}


def main(argv: list[str] | None = None) -> int:
    """Measure, or read what was measured; print, and write if wanted."""
    arguments = sys.argv[1:] if argv is None else argv
    options = parse(arguments)
    if options.source:
        try:
            report = loads(options.source.read_text())
        except (OSError, ValueError) as error:
            console().print(f"{options.source} cannot be read: {error}", markup=False)
            return 1
    else:
        try:
            report = measure(options, arguments)
        except StartFailed as failure:
            console().print(str(failure))
            return 1
        except grpc.RpcError as error:
            console().print(str(from_rpc_error(error, "the coordinator")))
            return 1
    emit(report, grids(report))
    if options.write:
        write_section(options.results, f"pair:{report['pair']}", section(report))
    return 0


def measure(options: argparse.Namespace, arguments: list[str]) -> dict[str, Any]:
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
    whole: dict[str, Any] = rounded(report)
    return whole


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
    """Read the command line; what --quick sets gives way to flags of one's own."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.quick:
        parser.set_defaults(**QUICK)
        options = parser.parse_args(arguments)
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
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.pair", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--pair", choices=PAIRS, default=DEFAULT_PAIR, help="target and draft by name (%(default)s)")
    add("--target", help="in place of the pair's")
    add("--draft", action="append", help="repeat for several (the pair's, a lookup, a lookup before the pair's)")
    add("--name", help="of the section in RESULTS.md (the pair's, or that of another target)")
    add("--kind", nargs="+", choices=list(PROMPTS), default=list(PROMPTS), help="of prompts (all)")
    add(
        "--laps",
        type=_positive,
        default=2,
        help="prompts of each kind; beyond four, again with other seeds (%(default)s)",
    )
    add("--gamma", nargs="+", type=_positive, default=[2, 4, 8], help="draft tokens a round, beside 0 (2 4 8)")
    add("--temperature", nargs="+", type=_temperature, default=[0.0, 0.7], help="(0 0.7)")
    add("--max-new-tokens", type=_positive, default=40, help="of an answer (%(default)s)")
    add("--verification", choices=["token", "block", "coupled"], default="block", help="(%(default)s)")
    add("--threads", type=_positive, default=usable_cores(), help="of each model server (the cores: %(default)s)")
    add("--seed", type=int, default=1, help="of the first prompts (%(default)s)")
    add("--plain", action="store_true", help="send prompts without a chat template")
    add("--ignore-eos", action="store_true", help="end answers by length alone")
    add("--quick", action="store_true", help="a first look: one prompt of each kind, few tokens, greedy, gamma 4")
    add("--write", action="store_true", help="put the section into RESULTS.md")
    add("--results", type=Path, default=RESULTS, help="the file to write into (%(default)s)")
    add("--from", dest="source", type=Path, help="read the JSON of an earlier run in place of measuring")
    return parser


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is no whole number above 0")
    return int(text)


def _temperature(text: str) -> float:
    try:
        value = float(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text} is no number") from error
    if not value >= 0:
        raise argparse.ArgumentTypeError(f"{text} is below 0")
    return value


def _model(info: Any) -> dict[str, Any]:
    facts: dict[str, Any] = MessageToDict(info, preserving_proto_field_name=True)
    return facts


if __name__ == "__main__":
    sys.exit(main())
