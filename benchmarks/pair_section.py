"""The ``pair`` benchmark's report in words and tables, made from its JSON alone."""

from collections.abc import Iterable, Sequence
from typing import Any

from benchmarks.hugging_face import ASSISTED, GENERATE
from benchmarks.output import Grid
from benchmarks.pair_goals import ALL, LEAST_DRAFTED, drafted, goals, kept_grid
from benchmarks.surroundings import in_words
from benchmarks.ways import PLAIN, PLAIN_AGAIN
from benchmarks.wording import NOTHING, median, number, quartiles

MIN_REACHED = 10  # rounds behind an acceptance that is shown
NEAR_TIE = 0.01  # nats: rounding in another batch shape may turn such a choice

Cell = dict[str, Any]


def section(report: dict[str, Any]) -> str:
    """Return the Markdown section of RESULTS.md."""
    parts = [f"## Pair {report['pair']}", in_words(report), _how(report), _models(report)]
    parts.append(_best(report).markdown())
    for draft in report["drafts"]:
        parts += [
            f"### Draft `{draft['draft']}`",
            _verdict(draft),
            goals(draft),
            *(grid.markdown() for grid in _grids(draft)),
        ]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def grids(report: dict[str, Any]) -> list[Grid]:
    """Return all tables, for a terminal."""
    return [*(grid for draft in report["drafts"] for grid in _grids(draft)), _best(report)]


def _how(report: dict[str, Any]) -> str:
    settings = report["settings"]
    ends = "at that length alone" if settings["ignore_eos"] else "there or where the model ends them"
    return (
        f"{settings['threads']} threads in each model server, which work in turns. "
        "Measured with the real coordinator, draft, target and Redis over loopback, by one client that asks one answer "
        f"at a time: {settings['laps']} of each kind of prompt, at most {settings['max_new_tokens']} tokens, ending "
        f"{ends}; verification {settings['verification']}. Each prompt is asked in every way, one after the other "
        "in changing order, after a warm-up: with each gamma, with the gamma that the services choose (adaptive), and "
        "by Hugging Face `generate` with the target alone and assisted by the same draft, in a process of as many "
        "threads. **Speed-up** is the pace after the first tokens against gamma 0 on the "
        "same prompt in the same run, as the median over prompts with quartiles; below 1 speculation loses. "
        "**Expected** is the same ratio if only the models took time: tokens a round × T(1) / (draft time + T(n + 1)), "
        "T(n) being a target pass over n tokens as the target server timed it; **efficiency** is the measured over the "
        "expected one. **Acceptance** at a position counts rounds whose proposal reached it with all earlier draft "
        f"tokens kept; fewer than {MIN_REACHED} such rounds are not shown. {_limits(report)}"
    )


def _limits(report: dict[str, Any]) -> str:
    """Say what the comparisons cannot tell."""
    settings = report["settings"]
    said = [
        "The best way is picked after the fact, so its figure is flattered a little.",
        f"Adaptive answers with fewer than {LEAST_DRAFTED:g} draft tokens a round count as plain decoding: what they "
        "gain or lose is not counted as speculation's.",
        "One coordinator answers in all ways, so adaptive gamma knows from the fixed ones what calls take, and from "
        "greedy or COUPLED ones how far proposals stand.",
    ]
    if any(settings["temperatures"]):
        ways = "adaptive answers and those of Hugging Face" if settings["verification"] == "coupled" else "the ways"
        said.append(f"Above temperature 0 {ways} draw other texts than gamma 0: their ratios compare different texts.")
    if any(cell["way"] == PLAIN_AGAIN for draft in report["drafts"] for cell in draft["cells"]):
        said.append(f"**{PLAIN_AGAIN.capitalize()}** is the same asked a second time: its distance from 1 is noise.")
    return " ".join(said)


def _models(report: dict[str, Any]) -> str:
    target = report["models"]["target"]
    defaults = ", ".join(f"{name} {value}" for name, value in target.get("default_sampling_params", {}).items())
    return f"Target: `{target['name']}`" + (f", its own sampling defaults: {defaults}." if defaults else ".")


def _verdict(draft: dict[str, Any]) -> str:
    cells = [cell for cell in _speculating(draft) if cell["kind"] != ALL and cell["speedup"] and drafted(cell)]
    losing = sum(cell["speedup"]["median"] < 1 for cell in cells)
    fallbacks = sum(cell["fallback_rounds"] for cell in _speculating(draft) if cell["kind"] != ALL)
    sentences = [f"Speculation loses in {losing} of {len(cells)} settings."]
    if fallbacks:
        sentences.append(f"**{fallbacks} rounds had no draft although they should have.**")
    theirs = [way for way in draft["ways"] if way in (GENERATE, ASSISTED)]
    ours = [way for way in draft["ways"] if way not in (PLAIN, *theirs)]
    for whose, ways in (("Greedy token ids", ours), ("Those of Hugging Face", theirs)):
        compared = draft["greedy_cases"] * len(ways)
        if compared:
            found = [one for one in draft["differences"] if one["way"] in ways]
            sentences.append(_equality(whose, found, compared))
    took = ", ".join(f"{one['tokens']}: {one['milliseconds']:.1f}" for one in draft["passes"])
    return " ".join([*sentences, f"Milliseconds of a target pass by the tokens in it: {took}."])


def _equality(whose: str, differences: Sequence[dict[str, Any]], compared: int) -> str:
    if not differences:
        return f"{whose} equal those of gamma 0 in all {compared} comparisons."
    ties = [found["gap"] for found in differences if found["gap"] is not None and found["gap"] < NEAR_TIE]
    said = f"{whose} differ from those of gamma 0 in {len(differences)} of {compared} comparisons"
    if len(ties) == len(differences):
        return f"{said}, each at a near-tie (at most {max(ties):.1e} nats between the two tokens)."
    return f"**{said}, and {len(differences) - len(ties)} of them are no near-ties.**"


def _best(report: dict[str, Any]) -> Grid:
    """Return the fastest way measured for each kind and temperature: chosen afterwards, so slightly flattered."""
    found: dict[tuple[str, float], list[tuple[float, str, Cell]]] = {}
    noise: dict[tuple[str, float, str], dict[str, float] | None] = {}
    for draft in report["drafts"]:
        for cell in draft["cells"]:
            if cell["way"] == PLAIN_AGAIN:
                noise[cell["kind"], cell["temperature"], draft["draft"]] = cell["speedup"]
        for cell in _speculating(draft):
            if cell["speedup"] and drafted(cell):
                key = (cell["kind"], cell["temperature"])
                found.setdefault(key, []).append((cell["speedup"]["median"], draft["draft"], cell))
    rows = []
    for (kind, temperature), ways in found.items():
        speedup, draft, cell = max(ways, key=lambda way: way[0])
        around = quartiles(noise.get((kind, temperature, draft)), 2)
        way = [f"`{draft}`", cell["way"], _spread(cell["speedup"])] if speedup > 1 else ["none", PLAIN, "1"]
        rows.append([f"{kind}, {temperature:g}", *way, around])
    header = ["prompts, temperature", "draft", "way", "speed-up", PLAIN_AGAIN]
    return Grid("What pays, of what was measured", header, rows)


def _grids(draft: dict[str, Any]) -> list[Grid]:
    return [_speedups(draft), kept_grid(draft), _costs(draft), _acceptance(draft)]


def _speedups(draft: dict[str, Any]) -> Grid:
    ways = [way for way in draft["ways"] if way != PLAIN]
    cells = {(cell["kind"], cell["temperature"], cell["way"]): cell for cell in draft["cells"]}
    rows = [
        [
            f"{kind}, {temperature:g}",
            median(cells[kind, temperature, PLAIN]["tokens_a_second"], 1),
            *(_shown(cells[kind, temperature, way]) for way in ways),
        ]
        for kind, temperature in dict.fromkeys((kind, temperature) for kind, temperature, _ in cells)
    ]
    titles = [f"Hugging Face {way}" if way in (GENERATE, ASSISTED) else way for way in ways]
    header = ["prompts, temperature", f"tokens/s, {PLAIN}", *titles]
    return Grid(f"Speed-up with `{draft['draft']}`", header, rows)


def _costs(draft: dict[str, Any]) -> Grid:
    header = [
        "all prompts, temperature",
        "way",
        "draft tokens a round",
        "tokens a round",
        "ms a draft token",
        "ms Propose",
        "ms target pass",
        "ms Verify",
        "expected",
        "measured",
        "efficiency",
    ]
    rows = [_cost_row(cell) for cell in draft["cells"] if cell["kind"] == ALL and "milliseconds" in cell]
    return Grid(f"Where the time goes with `{draft['draft']}`", header, rows)


def _cost_row(cell: Cell) -> list[str]:
    took = cell["milliseconds"]
    return [
        f"{cell['temperature']:g}",
        cell["way"],
        number(cell.get("draft_tokens_a_round", 0.0), 2),
        number(cell["tokens_a_round"], 2),
        number(took["draft_token"], 2),
        number(took["propose_call"] if cell["gamma"] != 0 else None, 2),
        number(took["target"], 2),
        number(took["verify_call"], 2),
        median(cell.get("expected_speedup"), 2),
        median(cell.get("speedup"), 2),
        median(cell.get("efficiency"), 3),
    ]


def _acceptance(draft: dict[str, Any]) -> Grid:
    """Return α by position at the largest gamma, where all positions occur."""
    cells = [cell for cell in _speculating(draft) if cell["gamma"] is not None]
    gamma = max(cell["gamma"] for cell in cells)
    largest = [cell for cell in cells if cell["gamma"] == gamma]
    rows = [[f"{cell['kind']}, {cell['temperature']:g}", *_rates(cell["acceptance"], gamma)] for cell in largest]
    header = ["prompts, temperature", *(str(position) for position in range(1, gamma + 1))]
    return Grid(f"Acceptance by position at gamma {gamma} with `{draft['draft']}`", header, rows)


def _rates(acceptance: Sequence[Cell], gamma: int) -> list[str]:
    shown = [number(one["rate"], 2) if one["reached"] >= MIN_REACHED else NOTHING for one in acceptance]
    return shown + [NOTHING] * (gamma - len(shown))


def _speculating(draft: dict[str, Any]) -> Iterable[Cell]:
    return (cell for cell in draft["cells"] if cell.get("gamma", 0) != 0)


def _shown(cell: Cell) -> str:
    return quartiles(cell["speedup"], 2) if cell["way"] == PLAIN_AGAIN else _spread(cell["speedup"])


def _spread(figures: dict[str, float] | None) -> str:
    text = quartiles(figures, 2)
    return f"**{text}**" if figures and figures["median"] > 1 else text
