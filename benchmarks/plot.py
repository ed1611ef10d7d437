"""Line plots as SVG text, for a page that loads nothing: no library, no script."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 680, 340
LEFT, RIGHT, TOP, BOTTOM = 60, 190, 34, 46
MOST_TICKS = 6
# Told apart by people who see colours differently, too (Okabe and Ito).
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#6b6b6b")
MARKER, LEGEND_LINE = 3.5, 18

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Series:
    """What belongs together.

    Attributes:
        name: in the legend.
        points: in the order of x.
        colour: index of the colour: a curve and what was measured of it share one.
        line: whether the points are joined.
        dashed: and by dashes, as what is expected.
        markers: whether the points are shown.
    """

    name: str
    points: Sequence[Point]
    colour: int
    line: bool = True
    dashed: bool = False
    markers: bool = True


@dataclass(frozen=True, slots=True)
class Plot:
    """A plot.

    Attributes:
        title: what it says.
        x: label with unit.
        y: label with unit.
        series: at least one of them with a point.
        doubling: the x axis gives every doubling the same room, and has ticks where points are.
        level: a value of y to mark, such as 1 for a speed-up.
    """

    title: str
    x: str
    y: str
    series: Sequence[Series]
    doubling: bool = False
    level: float | None = None


def ticks(low: float, high: float) -> list[float]:
    """Return at most MOST_TICKS + 1 round numbers that span a range, the first not above it, the last not below."""
    if low == high:
        low, high = low - 1, high + 1
    rough = (high - low) / (MOST_TICKS - 1)
    scale = 10.0 ** math.floor(math.log10(rough))
    step = next(scale * factor for factor in (1, 2, 5, 10) if scale * factor >= rough)
    first, last = math.floor(low / step), math.ceil(high / step - 1e-9)
    return [float(f"{step * index:.6g}") for index in range(first, max(last, first + 1) + 1)]


def svg(plot: Plot) -> str:
    """Draw a plot."""
    xs = sorted({x for series in plot.series for x, _ in series.points})
    ys = [y for series in plot.series for _, y in series.points]
    ys += [0.0] if plot.level is None else [0.0, plot.level]
    x_ticks, y_ticks = xs if plot.doubling else ticks(xs[0], xs[-1]), ticks(min(ys), max(ys))
    bend = math.log2 if plot.doubling else float
    across = _scale(bend(x_ticks[0]), bend(x_ticks[-1]), LEFT, WIDTH - RIGHT)
    up = _scale(y_ticks[0], y_ticks[-1], HEIGHT - BOTTOM, TOP)

    def place(point: Point) -> Point:
        return across(bend(point[0])), up(point[1])

    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(plot.title)}">',
        f'<text class="title" x="{LEFT}" y="18">{escape(plot.title)}</text>',
        *(_horizontal(up(y), f"{y:g}") for y in y_ticks),
        *(_vertical(across(bend(x)), f"{x:g}") for x in x_ticks),
        f'<text class="label" x="{(LEFT + WIDTH - RIGHT) / 2:g}" y="{HEIGHT - 8}">{escape(plot.x)}</text>',
        f'<text class="label" transform="translate(14 {(TOP + HEIGHT - BOTTOM) / 2:g}) rotate(-90)">'
        f"{escape(plot.y)}</text>",
    ]
    if plot.level is not None:
        y = up(plot.level)
        parts.append(f'<line class="level" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
    for index, series in enumerate(plot.series):
        parts += [*_drawn(series, place), _legend(series, index)]
    return "\n".join([*parts, "</svg>"])


def _scale(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    room = high - low or 1.0
    return lambda value: start + (value - low) / room * (end - start)


def _horizontal(y: float, text: str) -> str:
    line = f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
    return f'{line}<text class="tick" text-anchor="end" x="{LEFT - 6}" y="{y + 4:.1f}">{text}</text>'


def _vertical(x: float, text: str) -> str:
    return f'<text class="tick" text-anchor="middle" x="{x:.1f}" y="{HEIGHT - BOTTOM + 16}">{text}</text>'


def _drawn(series: Series, place: Callable[[Point], Point]) -> list[str]:
    colour, found = COLOURS[series.colour % len(COLOURS)], []
    if series.line:
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in map(place, series.points))
        dashes = ' stroke-dasharray="5 4"' if series.dashed else ""
        found.append(f'<polyline fill="none" stroke="{colour}" stroke-width="2"{dashes} points="{path}"/>')
    if series.markers:
        for point in series.points:
            x, y = place(point)
            told = f"<title>{escape(series.name)}: {point[0]:g}, {point[1]:.4g}</title>"
            found.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{MARKER}" fill="{colour}">{told}</circle>')
    return found


def _legend(series: Series, index: int) -> str:
    x, y = WIDTH - RIGHT + 14, TOP + 6 + LEGEND_LINE * index
    colour, dashes = COLOURS[series.colour % len(COLOURS)], ' stroke-dasharray="5 4"' if series.dashed else ""
    key = f'<circle cx="{x + 9}" cy="{y}" r="{MARKER}" fill="{colour}"/>' if series.markers else ""
    if series.line:
        key += f'<line x1="{x}" x2="{x + 18}" y1="{y}" y2="{y}" stroke="{colour}" stroke-width="2"{dashes}/>'
    return f'{key}<text class="legend" x="{x + 24}" y="{y + 4}">{escape(series.name)}</text>'
