"""The plots of each kind of report, made from its JSON alone."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.cost_model import Costs, alike
from benchmarks.load_goals import CLOSED
from benchmarks.pair_goals import ALL
from benchmarks.plot import Plot, Point, Series
from benchmarks.ways import ADAPTIVE, PLAIN
from benchmarks.wire_section import CONNECTIONS

Report = Mapping[str, Any]
CURVE_STEPS = 49
LAST_ALPHA = 0.98
MIN_REACHED = 10  # rounds behind an acceptance that is shown


def overhead_plots(report: Report) -> list[Plot]:
    """Speed-up against gamma and α beside the arithmetic, from the grid; against the round trip, from the ways."""
    target_ms, grid = report["settings"]["point"]["target_ms"], report["grid"]
    near = [cell for cell in grid if not cell["round_trip_ms"]]
    plots = []
    for draft_ms in sorted({cell["draft_ms"] for cell in near}):
        cells, costs = [one for one in near if one["draft_ms"] == draft_ms], Costs(draft_ms, target_ms, target_ms)
        ratio = f"a draft pass costs {draft_ms / target_ms:.2g} of a target pass"
        plots += [_against_gamma(cells, costs, ratio), _against_alpha(cells, costs, ratio)]
    return [*plots, *_against_round_trip(report["ways"])]


def _against_gamma(cells: Sequence[Report], costs: Costs, ratio: str) -> Plot:
    series, gammas = [], range(max(cell["gamma"] for cell in cells) + 1)
    for index, alpha in enumerate(sorted({cell["alpha"] for cell in cells})):
        curve = [(float(gamma), costs.speedup(alike(alpha, gamma))) for gamma in gammas]
        series.append(Series(f"α = {alpha:g}, expected", curve, index, dashed=True, markers=False))
        found = _points((cell for cell in cells if cell["alpha"] == alpha), "gamma", "speedup_in_all")
        series.append(Series(f"α = {alpha:g}, measured", found, index, line=False))
    return Plot(f"Speed-up against γ: {ratio}", "γ, draft tokens a round", "times plain decoding", series, level=1)


def _against_alpha(cells: Sequence[Report], costs: Costs, ratio: str) -> Plot:
    series = []
    for index, gamma in enumerate(sorted({cell["gamma"] for cell in cells if cell["gamma"]})):
        alphas = [LAST_ALPHA * step / CURVE_STEPS for step in range(CURVE_STEPS + 1)]
        curve = [(alpha, costs.speedup(alike(alpha, gamma))) for alpha in alphas]
        series.append(Series(f"γ = {gamma}, expected", curve, index, dashed=True, markers=False))
        found = _points((cell for cell in cells if cell["gamma"] == gamma), "alpha", "speedup_in_all")
        series.append(Series(f"γ = {gamma}, measured", found, index, line=False))
    return Plot(f"Speed-up against α: {ratio}", "α, chance of a draft token", "times plain decoding", series, level=1)


def _against_round_trip(ways: Sequence[Report]) -> list[Plot]:
    """Return how speed-ups change with the distance, of the verification that was measured at several."""
    far = {way["verification"] for way in ways if way["round_trip_ms"] and way["gamma"]}
    speculating = [way for way in ways if way["gamma"] and way["verification"] in far]
    if not speculating:
        return []
    series = []
    for index, ahead in enumerate((False, True)):
        cells = [way for way in speculating if way["ahead"] == ahead]
        if cells:
            name = "drafting ahead" if ahead else "sequential"
            series.append(Series(name, _points(cells, "round_trip_ms", "speedup_in_all"), index))
    expected = _points((way for way in speculating if not way["ahead"]), "round_trip_ms", "expected_speedup")
    series.append(Series("sequential, expected", expected, 0, dashed=True, markers=False))
    title = f"Speed-up against the round trip to the models: γ = {speculating[0]['gamma']}"
    return [Plot(title, "milliseconds added to a round trip", "times plain decoding there", series, level=1)]


def pair_plots(report: Report) -> list[Plot]:
    """Speed-up against gamma, and acceptance by position, for each draft at each temperature."""
    plots = []
    for draft in report["drafts"]:
        for temperature in report["settings"]["temperatures"]:
            cells = [cell for cell in draft["cells"] if cell["temperature"] == temperature and cell["way"] != PLAIN]
            where = f"{draft['draft']}, temperature {temperature:g}"
            plots += [_pair_speedups(cells, where), _pair_acceptance(cells, where)]
    return [plot for plot in plots if any(series.points for series in plot.series)]


def _pair_speedups(cells: Sequence[Report], where: str) -> Plot:
    fixed = [cell for cell in cells if cell.get("gamma") and cell["speedup"]]
    series = []
    for index, kind in enumerate(dict.fromkeys(cell["kind"] for cell in fixed)):
        found = sorted((float(one["gamma"]), one["speedup"]["median"]) for one in fixed if one["kind"] == kind)
        series.append(Series(kind, found, index))
    of_all = [cell for cell in fixed if cell["kind"] == ALL]
    expected = sorted((float(one["gamma"]), one["expected_speedup"]["median"]) for one in of_all)
    series.append(Series("all, expected", expected, len(series) - 1, dashed=True, markers=False))
    chosen = [cell for cell in cells if cell["kind"] == ALL and cell["way"] == ADAPTIVE and cell["speedup"]]
    found = [(one["draft_tokens_a_round"], one["speedup"]["median"]) for one in chosen]
    series.append(Series("all, adaptive", found, len(series), line=False))
    return Plot(f"Speed-up against γ: {where}", "γ, draft tokens a round", "times plain decoding", series, level=1)


def _pair_acceptance(cells: Sequence[Report], where: str) -> Plot:
    longest = max((cell["gamma"] for cell in cells if cell.get("gamma")), default=0)
    series = []
    for index, cell in enumerate(one for one in cells if one.get("gamma") == longest):
        shown = [(place, one) for place, one in enumerate(cell["acceptance"], 1) if one["reached"] >= MIN_REACHED]
        series.append(Series(cell["kind"], [(float(place), one["rate"]) for place, one in shown], index))
    return Plot(f"Acceptance by position: {where}", "draft token of a round", "kept, of those reached", series)


def load_plots(report: Report) -> list[Plot]:
    """Tokens a second and what readers wait, against the number of sessions."""
    cells = [cell for cell in report["cells"] if cell["kind"] == CLOSED]
    ways = list(dict.fromkeys(cell["way"] for cell in cells))

    def lines(read: Callable[[Report], float | None], suffix: str = "", *, dashed: bool = False) -> list[Series]:
        found = []
        for index, way in enumerate(ways):
            values = [(float(cell["load"]), read(cell)) for cell in cells if cell["way"] == way]
            points = [(load, value) for load, value in values if value is not None]
            found.append(Series(way + suffix, points, index, dashed=dashed))
        return [series for series in found if series.points]

    def waits(name: str) -> list[Series]:
        def read(share: str) -> Callable[[Report], float | None]:
            return lambda cell: 1000 * cell[name][share] if cell[name] else None

        return [*lines(read("p50"), ", p50"), *lines(read("p99"), ", p99", dashed=True)]

    x = "sessions that ask again and again"
    plots = [
        Plot(
            "Tokens a second in all", x, "tokens a second", lines(lambda cell: cell["tokens_a_second"]), doubling=True
        ),
        Plot("Time to the first tokens", x, "milliseconds", waits("first_token_seconds"), doubling=True),
        Plot("Time of a token", x, "milliseconds", waits("token_seconds"), doubling=True),
    ]
    return [plot for plot in plots if plot.series]


def wire_plots(report: Report) -> list[Plot]:
    """Bytes of a round against the context."""
    series = []
    for index, k in enumerate(sorted({cell["support_size"] for cell in report["cells"]})):
        cells = [cell for cell in report["cells"] if cell["support_size"] == k]
        found = [(float(cell["context"]), sum(cell["bytes"][name] for name in CONNECTIONS)) for cell in cells]
        series.append(Series(f"k = {k}", sorted(found), index))
    return [Plot("Bytes of a round on all connections", "tokens of context", "bytes", series)]


def pass_cost_plots(report: Report) -> list[Plot]:
    """Milliseconds of a pass against the tokens in it, by quantisation."""
    series = [
        Series(way["quantization"], [(float(cost["tokens"]), cost["ms"]["median"]) for cost in way["costs"]], index)
        for index, way in enumerate(report["ways"])
    ]
    return [Plot("Cost of a pass", "tokens in the pass", "ms", series)]


def _points(cells: Any, x: str, y: str) -> list[Point]:
    return sorted((float(cell[x]), cell[y]) for cell in cells)
