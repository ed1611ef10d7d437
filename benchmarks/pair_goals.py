"""What a draft's cells say of the goals: how much is kept of what α and the passes' costs allow, and by whom. Pure."""

from collections.abc import Mapping
from typing import Any

from benchmarks.hugging_face import ASSISTED, GENERATE
from benchmarks.output import Grid
from benchmarks.pair_reasons import adaptive_reason, assisted_reason, call_reason, generate_reason
from benchmarks.ways import ADAPTIVE, PLAIN_AGAIN, way_name
from benchmarks.wording import (
    ADAPTIVE_SHARE,
    AGAINST_PLAIN,
    adaptive_goals,
    against_goal,
    number,
    quartiles,
    said_of_goals,
)

ALL = "all"
KEPT = 0.95  # of what α and the passes' costs allow
AGAINST_ASSISTED = 1.15  # times Hugging Face's assisted generation
AGAINST_GENERATE = 1.0  # times its plain generation, which users would run instead
LEAST_DRAFTED = 0.1  # draft tokens a round; with fewer an answer is plain decoding, however fast it was

Cell = Mapping[str, Any]


def drafted(cell: Cell) -> bool:
    """Say whether answers had enough draft tokens to be anything but plain decoding; a fixed gamma's were to."""
    return cell["gamma"] is not None or bool(cell["draft_tokens_a_round"] >= LEAST_DRAFTED)


def kept(cells: Mapping[str, Cell]) -> dict[str, Any] | None:
    """Compare the ways of one kind of prompt at one temperature, by the medians of their speed-ups.

    Args:
        cells: by way.

    Returns:
        None where nothing could be compared. Else ``allowed``, the largest speed-up that a fixed gamma's own α and pass
        costs allow, and 1 where they allow none; ``best``, the largest one measured of a fixed gamma, 0 included;
        ``gamma``, whose it is; ``kept``, the latter over the former; ``adaptive``, and its share of the best;
        ``against_generate`` and ``against_assisted``, the best way of all, adaptive gamma's where it drafted, against
        Hugging Face's plain and assisted generation, None without them; ``fastest``, that way's cell; ``cells`` as they
        came.
    """
    fixed = [cell for cell in cells.values() if cell.get("gamma") and cell["speedup"]]
    adaptive = cells[ADAPTIVE]["speedup"]
    if not fixed or not adaptive:
        return None
    speedups = {cell["gamma"]: cell["speedup"]["median"] for cell in fixed} | {0: 1.0}
    gamma = max(speedups, key=lambda one: speedups[one])
    allowed = max(1.0, *(cell["expected_speedup"]["median"] for cell in fixed))
    fastest, ours = cells[way_name(gamma)], speedups[gamma]
    if drafted(cells[ADAPTIVE]) and adaptive["median"] > ours:
        fastest, ours = cells[ADAPTIVE], adaptive["median"]
    theirs = {way: cells[way]["speedup"] if way in cells else None for way in (GENERATE, ASSISTED)}
    against = {way: ours / speedup["median"] if speedup else None for way, speedup in theirs.items()}
    return {
        "allowed": allowed,
        "best": speedups[gamma],
        "gamma": gamma,
        "kept": speedups[gamma] / allowed,
        "adaptive": adaptive["median"],
        "adaptive_share": adaptive["median"] / speedups[gamma],
        "against_generate": against[GENERATE],
        "against_assisted": against[ASSISTED],
        "fastest": fastest,
        "cells": cells,
    }


def kept_grid(draft: Mapping[str, Any]) -> Grid:
    """Lay the comparison out for every kind and temperature."""
    rows = []
    for setting, found in _settings(draft).items():
        row = [setting, number(found["allowed"], 2), number(found["best"], 2)]
        row += [str(found["gamma"]), number(found["kept"], 3), number(found["adaptive"], 2)]
        row += [number(found["adaptive_share"], 3)]
        row += [number(found[f"against_{way}"], 2) for way in (GENERATE, ASSISTED)]
        rows.append(row)
    header = ["prompts, temperature", "allowed by α and passes", "best gamma's speed-up", "gamma", "kept", "adaptive"]
    header += ["of the best gamma", "best against generate", "best against assisted generation"]
    return Grid(f"What is kept with `{draft['draft']}`", header, rows)


def goals(draft: Mapping[str, Any]) -> str:
    """Return the list that compares a draft's settings with the goals, and says why where they are missed."""
    settings = _settings(draft)
    if not settings:
        return "No answer was long enough to be compared."

    def figures(name: str) -> dict[str, float]:
        return {setting: found[name] for setting, found in settings.items() if found[name] is not None}

    def missed(name: str, goal: float) -> list[str]:
        return [setting for setting, figure in figures(name).items() if figure < goal]

    said = [against_goal("What the best gamma keeps of what α and the passes allow", figures("kept"), KEPT)]
    said += [call_reason(setting, settings[setting]) for setting in missed("kept", KEPT)]
    said += adaptive_goals(figures("adaptive_share"), figures("adaptive"))
    slow = {*missed("adaptive_share", ADAPTIVE_SHARE), *missed("adaptive", AGAINST_PLAIN)}
    said += [adaptive_reason(setting, found) for setting, found in settings.items() if setting in slow]
    if generate := figures("against_generate"):
        said.append(against_goal("The best way against plain generate", generate, AGAINST_GENERATE))
        worst = min(generate, key=lambda setting: generate[setting])  # what it is due to is the same in all
        said += [generate_reason(worst, settings[worst])] if generate[worst] < AGAINST_GENERATE else []
    if assisted := figures("against_assisted"):
        said.append(against_goal("The best way against assisted generation", assisted, AGAINST_ASSISTED))
        said += [
            assisted_reason(setting, settings[setting]) for setting in missed("against_assisted", AGAINST_ASSISTED)
        ]
    return said_of_goals(said + _noise(settings))


def _noise(settings: Mapping[str, Any]) -> list[str]:
    """Say what the same answers' paces differ by, where the run asked them twice."""
    again = {setting: found["cells"].get(PLAIN_AGAIN) for setting, found in settings.items()}
    spreads = [
        f"{setting}: {quartiles(cell['speedup'], 2)}" for setting, cell in again.items() if cell and cell["speedup"]
    ]
    return [f"Noise, as gamma 0 asked again against gamma 0: {'; '.join(spreads)}."] if spreads else []


def _settings(draft: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return what ``kept`` says of every kind and temperature where it says anything."""
    by_case: dict[str, dict[str, Cell]] = {}
    for cell in draft["cells"]:
        by_case.setdefault(f"{cell['kind']}, {cell['temperature']:g}", {})[cell["way"]] = cell
    return {setting: found for setting, cells in by_case.items() if (found := kept(cells))}
