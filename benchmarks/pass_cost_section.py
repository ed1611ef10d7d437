"""The ``pass_cost`` benchmark's report in words and tables, made from its JSON alone."""

from typing import Any

from benchmarks.output import Grid
from benchmarks.surroundings import in_words
from benchmarks.wording import number, quartiles

TOKENS, GOAL = 5, 1.35  # of a pass, and what it may cost against a pass over one


def section(report: dict[str, Any]) -> str:
    """Return the Markdown section of RESULTS.md."""
    parts = [f"## Cost of a pass of {report['settings']['model']}", in_words(report), _how(report), goals(report)]
    parts += [grid.markdown() for grid in grids(report)]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def goals(report: dict[str, Any]) -> str:
    """Return the paragraph that compares the cost of a short proposal's pass with the goal."""
    costs = [(way["quantization"], cost) for way in report["ways"] for cost in way["costs"]]
    found = {name: cost["of_one"] for name, cost in costs if cost["tokens"] == TOKENS}
    listed = [f"{name} {'meets' if times <= GOAL else 'misses'} it with {times:.2f}" for name, times in found.items()]
    said = ", ".join(listed) or "not measured"
    return f"Goal for a pass over {TOKENS} tokens: {GOAL:g} passes over one; {said}."


def grids(report: dict[str, Any]) -> list[Grid]:
    """Return all tables, for a terminal."""
    return [_costs(report), _distances(report)]


def _how(report: dict[str, Any]) -> str:
    settings = report["settings"]
    return (
        f"One session of {settings['context']} cached tokens, {settings['threads']} threads; the quantisations take "
        "turns, each with one pass that does not count, for the first after another model's is slower. **Of one** is "
        "the cost against a pass over one token, by medians (by the fastest passes). "
        "Distances are those of the next token's distribution, at temperature 1, from the model's that is not "
        "quantised, at the positions of the benchmark's prompts; the last column is the largest total variation "
        "between the same model's passes over one token and its pass over the whole text: what the number of tokens "
        "in a pass can change."
    )


def _costs(report: dict[str, Any]) -> Grid:
    rows = [
        [
            f"{way['quantization']}, {cost['tokens']}",
            quartiles(cost["ms"], 1),
            number(cost["fastest_ms"], 1),
            f"{cost['of_one']:.2f} ({cost['fastest_of_one']:.2f})",
        ]
        for way in report["ways"]
        for cost in way["costs"]
    ]
    return Grid("Milliseconds of a pass", ["quantization, tokens", "ms", "fastest", "of one"], rows)


def _distances(report: dict[str, Any]) -> Grid:
    header = ["quantization", "seconds to load", "positions", "total variation", "largest", "divergence"]
    header += ["same likeliest token", "one by one"]
    rows = [
        [
            way["quantization"],
            number(way["load_seconds"], 1),
            str(way["distances"]["positions"]),
            *(f"{way['distances'][name]:.1e}" for name in ("total_variation", "largest_total_variation", "divergence")),
            number(way["distances"]["same_likeliest"], 4),
            f"{way['one_by_one']:.1e}",
        ]
        for way in report["ways"]
    ]
    return Grid("Distance from the model that is not quantised", header, rows)
