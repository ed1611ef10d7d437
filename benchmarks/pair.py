"""What speculation gains with a pair of models, for each draft, kind of prompt, temperature and way of decoding.

    python -m benchmarks.pair --pair smollm2
    python -m benchmarks.pair --pair qwen2.5-coder --laps 2 --temperature 0 --gamma 4 --max-new-tokens 32
    python -m benchmarks.pair --target Qwen/Qwen3-4B --draft Qwen/Qwen3-0.6B --draft lookup:
    python -m benchmarks.pair --from pair.json --write

The real services answer over loopback, one system a draft: plainly, with each gamma, with the gamma they choose, and
plainly once more, which shows the noise. Beside them Hugging Face ``generate`` answers the same prompts with the same
models, alone and assisted. One JSON object goes to standard output, a table to a terminal; with --write the pair's
section of benchmarks/RESULTS.md is made anew.
"""

import argparse
import sys
import time
from dataclasses import asdict
from typing import Any

from google.protobuf.json_format import MessageToDict

from benchmarks.command import Benchmark, Report, not_negative, parse_quick, parser_of, positive, run
from benchmarks.hugging_face import ASSISTED
from benchmarks.output import console, progress
from benchmarks.pair_goals import ALL
from benchmarks.pair_plan import Plan
from benchmarks.pair_run import Answers, DraftRun, run_draft, ways_of
from benchmarks.pair_section import grids, section
from benchmarks.prompts import PROMPTS
from benchmarks.results import check_name
from benchmarks.speculation import comparison, cost_figures, pace_figures, pass_seconds, speculation_figures
from benchmarks.surroundings import surroundings, usable_cores
from benchmarks.ways import PLAIN
from deploy.pairs import DEFAULT_PAIR, LOOKUP, PAIRS, SYNTHETIC, prepare

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
        total = sum(plan.cases * len(ways_of(plan, draft)) for draft in plan.drafts)
        task = bar.add_task("answers", total=total)

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
    recordings = [by_way[way] for by_way in run.answers.values() for way in plan.gamma_by_way]
    passes = [{"tokens": tokens, "milliseconds": 1000 * took} for tokens, took in pass_seconds(recordings).items()]
    return {
        "draft": draft,
        "model": _model(run.models.draft),
        "ways": run.ways,
        "passes": passes,
        "greedy_cases": len(greedy),
        "differences": run.differences,
        "cells": [
            cell(plan, run.answers, kind, temperature, way)
            for kind in (*plan.kinds, ALL)
            for temperature in plan.temperatures
            for way in run.ways
        ],
    }


def cell(plan: Plan, answers: Answers, kind: str, temperature: float, way: str) -> dict[str, Any]:
    """Sum up the answers of one kind ("all": of every kind) at one temperature in one way."""
    chosen = [
        by_way for case, by_way in answers.items() if case.temperature == temperature and kind in (case.kind, ALL)
    ]
    own = [by_way[way] for by_way in chosen]
    pairs = [(by_way[PLAIN], by_way[way]) for by_way in chosen]
    figures = {"kind": kind, "temperature": temperature, "way": way, **pace_figures(own)}
    if way in plan.gamma_by_way:
        figures |= {"gamma": plan.gamma_by_way[way], "milliseconds": cost_figures(own)}
        figures |= speculation_figures(pairs) if way != PLAIN else {}
        if ASSISTED in chosen[0]:
            assisted = comparison((by_way[ASSISTED], by_way[way]) for by_way in chosen)
            figures["against_assisted"] = assisted["speedup"]
    else:
        figures |= comparison(pairs)
    return figures


def plan_of(options: argparse.Namespace) -> Plan:
    """Return what the options ask for; gamma 0 is always among it."""
    synthetic = options.target.startswith(SYNTHETIC)  # those have no chat template, and no weights for others
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
        plain=options.plain or synthetic,
        ignore_eos=options.ignore_eos,
        hugging_face=not (options.no_hugging_face or synthetic),
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
    add("--no-hugging-face", action="store_true", help="leave its generate out")
    add("--ignore-eos", action="store_true", help="end answers by length alone")
    return parser


def _model(info: Any) -> dict[str, Any]:
    facts: dict[str, Any] = MessageToDict(info, preserving_proto_field_name=True)
    return facts


def main(arguments: list[str]) -> int:
    """Measure, or read what was measured; print, and write if wanted."""
    return run(Benchmark("pair", parse, measure, lambda report: f"pair:{report['pair']}", section, grids), arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
