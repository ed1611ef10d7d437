"""What a draft's cells say of the goals: how much is kept of what α and the passes' costs allow, and by whom. Pure."""

from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.hugging_face import ASSISTED
from benchmarks.output import Grid
from benchmarks.ways import ADAPTIVE
from benchmarks.wording import ADAPTIVE_SHARE, adaptive_goals, against_goal, median, number

ALL = "all"
KEPT = 0.95  # of what α and the passes' costs allow
AGAINST_ASSISTED = 1.15  # times Hugging Face's assisted generation

Cell = Mapping[str, Any]


def kept(cells: Mapping[str, Cell]) -> dict[str, Any] | None:
    """Compare the ways of one kind of prompt at one temperature, by the medians of their speed-ups.

    Args:
        cells: by way.

    Returns:
        None where nothing could be compared. Else ``allowed``, the largest speed-up that a fixed gamma's own α and pass
        costs allow, and 1 where they allow none; ``best``, the largest one measured of a fixed gamma, 0 included;
        ``gamma``, whose it is; ``kept``, the latter over the former; ``adaptive``, and its share of the best;
        ``against_assisted``, the best way of all against Hugging Face's assisted generation, None without it.
    """
    fixed = [cell for cell in cells.values() if cell.get("gamma") and cell["speedup"]]
    adaptive = cells[ADAPTIVE]["speedup"]
    if not fixed or not adaptive:
        return None
    speedups = {cell["gamma"]: cell["speedup"]["median"] for cell in fixed} | {0: 1.0}
    gamma = max(speedups, key=lambda one: speedups[one])
    allowed = max(1.0, *(cell["expected_speedup"]["median"] for cell in fixed))
    assisted = cells[ASSISTED]["speedup"] if ASSISTED in cells else None
    return {
        "allowed": allowed,
        "best": speedups[gamma],
        "gamma": gamma,
        "kept": speedups[gamma] / allowed,
        "adaptive": adaptive["median"],
        "adaptive_share": adaptive["median"] / speedups[gamma],
        "against_assisted": max(speedups[gamma], adaptive["median"]) / assisted["median"] if assisted else None,
    }


def kept_grid(draft: Mapping[str, Any]) -> Grid:
    """Lay the comparison out for every kind and temperature."""
    rows = []
    for setting, found in _settings(draft):
        row = [setting, number(found["allowed"], 2), number(found["best"], 2)]
        row += [str(found["gamma"]), number(found["kept"], 3), number(found["adaptive"], 2)]
        row += [number(found["adaptive_share"], 3), number(found["against_assisted"], 2)]
        rows.append(row)
    header = ["prompts, temperature", "allowed by α and passes", "best gamma's speed-up", "gamma", "kept", "adaptive"]
    header += ["of the best gamma", "best against assisted generation"]
    return Grid(f"What is kept with `{draft['draft']}`", header, rows)


def goals(draft: Mapping[str, Any]) -> str:
    """Return the paragraph that compares a draft's settings with the goals, and says where adaptive gamma lost."""
    settings = dict(_settings(draft))
    if not settings:
        return "No answer was long enough to be compared."

    def figures(name: str) -> dict[str, float]:
        return {setting: found[name] for setting, found in settings.items() if found[name] is not None}

    said = [against_goal("What the best gamma keeps of what α and the passes allow", figures("kept"), KEPT)]
    shares = figures("adaptive_share")
    said += adaptive_goals(shares, figures("adaptive"))
    if assisted := figures("against_assisted"):
        said.append(against_goal("The best way against assisted generation", assisted, AGAINST_ASSISTED))
    slow = [name for name, share in shares.items() if share < ADAPTIVE_SHARE]
    return "Goals: " + " ".join(said + [_lost(name, settings[name]["cell"]) for name in slow])


def _lost(setting: str, cell: Cell) -> str:
    """Say what an adaptive answer's time went into: draft tokens that fell, and what the passes' own costs allow."""
    drafted, stood = cell["draft_tokens_a_round"], cell["tokens_a_round"] - 1
    return (
        f"At {setting} adaptive answers had {drafted:.2f} draft tokens a round, of which {stood:.2f} stood; by the "
        f"passes alone that would be {median(cell['expected_speedup'], 2)} times gamma 0."
    )


def _settings(draft: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield what ``kept`` says of every kind and temperature, with the adaptive cell."""
    by_case: dict[tuple[str, float], dict[str, Cell]] = {}
    for cell in draft["cells"]:
        by_case.setdefault((cell["kind"], cell["temperature"]), {})[cell["way"]] = cell
    for (kind, temperature), cells in by_case.items():
        if found := kept(cells):
            yield f"{kind}, {temperature:g}", found | {"cell": cells[ADAPTIVE]}
