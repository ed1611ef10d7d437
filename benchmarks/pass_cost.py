"""What a pass over n tokens costs under each quantisation, and how far the model moves.

    python -m benchmarks.pass_cost
    python -m benchmarks.pass_cost --pair qwen2.5-coder --seconds 120 --write

Speculation pays where a pass over a few tokens costs little more than a pass over one. No services run: the model is
loaded here, once for each quantisation, and they take turns so that a machine whose pace drifts meets all of them.
"""

import argparse
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from benchmarks.command import Benchmark, Report, above_zero, parse_quick, parser_of, positive, refuse, run, whole
from benchmarks.output import console, progress
from benchmarks.pass_cost_run import Timing, cost_figures, distances, encoded, rows_of, rows_one_by_one, time_passes
from benchmarks.pass_cost_section import grids, section
from benchmarks.prompts import PROMPTS
from benchmarks.surroundings import surroundings, usable_cores
from deploy.pairs import DEFAULT_PAIR, PAIRS
from deploy.process import StartFailed
from specdec.model.language_model import LanguageModel
from specdec.model.loading import load_model
from specdec.model.quantization import NONE, QUANTIZATIONS
from specdec.model.refusal import ModelRefused

QUICK = {"seconds": 5.0, "texts": 2}


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured.

    Attributes:
        model: to load.
        quantizations: of it; "none" is always among them, to be compared with.
        tokens: fed in a timed pass, ascending from 1.
        context: tokens in the cache before it.
        seconds: of all timed passes.
        texts: whose distributions are compared.
        text_tokens: of each at most.
        threads: of torch.
    """

    model: str
    quantizations: tuple[str, ...]
    tokens: tuple[int, ...]
    context: int
    seconds: float
    texts: int
    text_tokens: int
    threads: int


def measure(options: argparse.Namespace, arguments: list[str]) -> Report:
    """Measure and return the report.

    Raises:
        StartFailed: the model cannot be loaded.
    """
    plan = plan_of(options)
    torch.set_num_threads(plan.threads)
    begun, started = surroundings("benchmarks.pass_cost", arguments), time.monotonic()
    models, load_seconds = _load(plan)
    with progress(console()) as bar:
        task = bar.add_task("seconds", total=round(plan.seconds))
        timing = Timing(plan.tokens, plan.context, plan.seconds)
        seconds = time_passes(models, timing, lambda lap: bar.advance(task, lap))
    compared = _compare(models, plan)
    ways = [
        {
            "quantization": name,
            "fingerprint": models[name].description.model_fingerprint,
            "load_seconds": load_seconds[name],
            "costs": cost_figures(seconds[name]),
            **compared[name],
        }
        for name in plan.quantizations
    ]
    report = {"benchmark": "pass_cost", **begun, "settings": asdict(plan), "seconds": time.monotonic() - started}
    return report | {"ways": ways}


def _load(plan: Plan) -> tuple[dict[str, LanguageModel], dict[str, float]]:
    models, seconds = {}, {}
    for name in plan.quantizations:
        began = time.perf_counter()
        try:
            models[name] = load_model(plan.model, "cpu", quantization=name)
        except ModelRefused as refusal:
            raise StartFailed(str(refusal)) from refusal
        seconds[name] = time.perf_counter() - began
    return models, seconds


def _compare(models: dict[str, LanguageModel], plan: Plan) -> dict[str, dict[str, Any]]:
    plain = models[NONE]
    tokenizer = Tokenizer.from_file(str(Path(plain.description.tokenizer) / "tokenizer.json"))
    prompts = [text for lap in zip(*PROMPTS.values(), strict=True) for text in lap][: plan.texts]
    texts = encoded(plain, tokenizer, prompts, plan.text_tokens)
    expected = rows_of(plain, texts)
    found = {}
    for name, model in models.items():
        rows = rows_of(model, texts)
        alone = distances([rows_one_by_one(model, texts[0])], rows[:1])["largest_total_variation"]
        found[name] = {"distances": distances(rows, expected), "one_by_one": alone}
    return found


def plan_of(options: argparse.Namespace) -> Plan:
    """Return what the options ask for."""
    return Plan(
        model=options.model,
        quantizations=tuple(dict.fromkeys([NONE, *options.quantization])),
        tokens=tuple(sorted({1, *options.tokens})),
        context=options.context,
        seconds=options.seconds,
        texts=options.texts,
        text_tokens=options.text_tokens,
        threads=options.threads or usable_cores(),
    )


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = parser_of("pass_cost", __doc__)
    add = parser.add_argument
    add("--pair", choices=PAIRS, default=DEFAULT_PAIR, help="whose target is measured (%(default)s)")
    add("--target", "--model", dest="model", help="in place of the pair's")
    refuse(parser, ["--draft"], "pass_cost measures a target's passes, so it takes no draft")
    add("--quantization", nargs="+", choices=QUANTIZATIONS, default=QUANTIZATIONS, help="beside none (all)")
    add("--tokens", nargs="+", type=positive, default=[1, 2, 3, 5, 8, 16], help="in a pass (1 2 3 5 8 16)")
    add("--context", type=positive, default=100, help="cached tokens before a pass (%(default)s)")
    add("--seconds", type=above_zero, default=60.0, help="of all timed passes (%(default)s)")
    add("--texts", type=positive, default=10, help="whose distributions are compared (%(default)s)")
    add("--text-tokens", type=positive, default=100, help="of each at most (%(default)s)")
    add("--threads", type=whole, default=0, help="of torch; 0 is one a core (%(default)s)")
    options = parse_quick(parser, arguments, QUICK)
    options.model = options.model or PAIRS[options.pair].target
    return options


def _name(report: Report) -> str:
    return f"pass_cost:{report['settings']['model']}"


def main(arguments: list[str]) -> int:
    """Measure, or read what was measured; print, and write if wanted."""
    return run(Benchmark("pass_cost", parse, measure, _name, section, grids), arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
