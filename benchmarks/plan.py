"""How many pods, which gamma, what pace: computed from a pair's measured times by the arithmetic of a round.

    python -m benchmarks.plan --target-ms 30 --draft-ms 5 --alpha 0.7 --rtt-ms 1 --rate 20

The times and alpha come from `python -m benchmarks.pair` on your nodes, or from a deployment's dashboard; how many
sessions a pass takes in about the same time, from `python -m benchmarks.load`. Nothing is measured here. What the
services themselves take beside the passes, 2 to 5 ms a call on two slow cores, belongs to --rtt-ms. A pod has room for
--sessions answers at once, its DRAFT_MAX_SESSIONS or TARGET_MAX_SESSIONS; whether their tokens fit into its cache
(DRAFT_CACHE_TOKENS, TARGET_CACHE_TOKENS) is not asked here.
"""

import argparse
import sys
from collections.abc import Callable
from dataclasses import asdict, replace

from benchmarks.command import Report, chance, not_negative, positive
from benchmarks.output import Grid, emit, rounded
from benchmarks.sizing import Need, Pair, Sizing, best, least_alpha, most_draft_ms, sizing

LONGEST_MS = 60_000.0  # of a pass or a call
MOST_GAMMA = 64  # that COORDINATOR_MAX_GAMMA can be


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the command line."""
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("python -m benchmarks.plan", description=__doc__, formatter_class=layout)
    add = parser.add_argument
    add("--target-ms", type=_within(0.001, LONGEST_MS), required=True, help="a target pass over one token")
    add("--token-ms", type=_time, default=0.0, help="what each further token adds to it (%(default)s)")
    add("--draft-ms", type=_time, required=True, help="a draft token")
    add("--alpha", type=chance, required=True, help="chance that a draft token stands, given those before it")
    add("--rtt-ms", type=_time, default=0.0, help="one call to a model server and back (%(default)s)")
    add("--rate", type=_within(1e-6, 1e6), required=True, help="answers a second")
    add("--tokens", type=_count(10**6), default=256, help="of an answer (%(default)s)")
    add("--prompt-ms", type=_time, default=0.0, help="a target's work on a prompt; 0: not counted (%(default)s)")
    add("--draft-prompt-ms", type=_time, default=0.0, help="a draft's work on a prompt (%(default)s)")
    add("--sessions", type=_count(10**6), default=64, help="that a pod has room for (%(default)s)")
    add("--target-batch", type=_count(10**5), default=1, help="sessions of a target pass of that time (%(default)s)")
    add("--draft-batch", type=_count(10**5), default=1, help="sessions of a draft pass of that time (%(default)s)")
    add("--busy", type=_within(0.01, 1.0), default=0.7, help="share of the capacity to plan with (%(default)s)")
    add("--max-gamma", type=_count(MOST_GAMMA), default=8, help="most draft tokens a round (%(default)s)")
    return parser.parse_args(arguments)


def plan(options: argparse.Namespace) -> Report:
    """Return what was given, what each gamma comes to, which is best, and where speculation stops paying."""
    pair = Pair(**{name: getattr(options, name) for name in Pair.__dataclass_fields__})
    need = Need(**{name: getattr(options, name) for name in Need.__dataclass_fields__})
    gammas = range(1, options.max_gamma + 1)
    sizings = [sizing(pair, need, gamma) for gamma in (0, *gammas)]
    pays_from = least_alpha(lambda alpha: any(replace(pair, alpha=alpha).speedup(gamma) > 1 for gamma in gammas))
    return {
        "given": {**asdict(pair), **asdict(need)},
        "computed": {
            "best": asdict(best(sizings)),
            "by_gamma": [asdict(each) for each in sizings],
            "pays_above_alpha": pays_from,
            "pays_below_draft_ms": most_draft_ms(pair, options.max_gamma),
        },
    }


def grids(report: Report) -> list[Grid]:
    """Lay a plan out."""
    computed = report["computed"]
    chosen = computed["best"]["gamma"]
    header = [
        "gamma",
        "tokens a round",
        "target pods",
        "draft pods",
        "ms a token",
        "s an answer",
        "speed-up",
        "most tokens/s",
    ]
    rows = [_row(Sizing(**each), chosen) for each in computed["by_gamma"]]
    unread = "" if report["given"]["prompt_ms"] else "; the reading of prompts is not counted (--prompt-ms)"
    return [Grid(f"Computed, not measured; {_limits(computed)}{unread}", header, rows)]


def _row(each: Sizing, chosen: int) -> list[str]:
    return [
        f"{each.gamma}{' (best)' if each.gamma == chosen else ''}",
        f"{each.tokens_a_round:.2f}",
        str(each.target_pods),
        str(each.draft_pods),
        f"{each.token_ms:.1f}",
        f"{each.answer_s:.1f}",
        f"{each.speedup:.2f}",
        f"{each.most_tokens_a_second:.0f}",
    ]


def _limits(computed: Report) -> str:
    alpha, draft_ms = computed["pays_above_alpha"], computed["pays_below_draft_ms"]
    if alpha is None or draft_ms is None:
        return "no draft pays here" if alpha is None else f"pays above alpha {alpha:.2f}, whatever the draft takes"
    return f"pays above alpha {alpha:.2f}, or with a draft token below {draft_ms:.1f} ms"


def _within(least: float, most: float) -> Callable[[str], float]:
    """Return what reads numbers from least to most: beyond lies no deployment, but a slip of the hand."""

    def read(text: str) -> float:
        value = not_negative(text)
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{text} does not lie between {least:g} and {most:g}")
        return value

    return read


def _time(text: str) -> float:
    return _within(0.0, LONGEST_MS)(text)


def _count(most: int) -> Callable[[str], int]:
    """Return what reads whole numbers from 1 to most."""

    def read(text: str) -> int:
        value = positive(text)
        if value > most:
            raise argparse.ArgumentTypeError(f"{text} is above {most}")
        return value

    return read


def main() -> None:
    """Plan what the command line says."""
    report = rounded(plan(parse(sys.argv[1:])))
    emit(report, grids(report))


if __name__ == "__main__":
    main()
