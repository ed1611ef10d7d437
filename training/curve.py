"""The curve of a training: points in a file, and drawn on the terminal and as an SVG."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from training.atomic_files import replaced

HEIGHT = 8
SHADES = " ▁▂▃▄▅▆▇█"
SVG_SIZE = (640, 360)
SVG_MARGIN = 48


@dataclass(frozen=True, slots=True)
class Point:
    """How good the draft is after some training, on answers it does not learn from.

    Attributes:
        step: optimiser steps taken; 0 is the start.
        tokens: answer tokens learnt from, repeats counted.
        acceptance: α, between 0 and 1.
    """

    step: int
    tokens: int
    acceptance: float


def best(curve: Sequence[Point]) -> Point:
    """Return the point of the highest acceptance, the earliest of equals."""
    return max(curve, key=lambda point: point.acceptance)


def write_curve(curve: Sequence[Point], folder: Path) -> None:
    """Write curve.jsonl, one point a line, and curve.svg."""
    with replaced(folder / "curve.jsonl") as path:
        path.write_text("".join(json.dumps(asdict(point)) + "\n" for point in curve))
    with replaced(folder / "curve.svg") as path:
        path.write_text(svg(curve))


def text_plot(curve: Sequence[Point], width: int = 60) -> str:
    """Return the acceptance over the tokens as rows of block characters, at most width columns of points."""
    columns = min(len(curve), width)
    shown = [curve[column * (len(curve) - 1) // max(columns - 1, 1)] for column in range(columns)]
    low, high = _range(curve)
    levels = [round((point.acceptance - low) / (high - low) * HEIGHT * 8) for point in shown]
    rows = ["".join(SHADES[min(max(level - 8 * row, 0), 8)] for level in levels) for row in reversed(range(HEIGHT))]
    labels = [f"{high:.3f}", *[""] * (HEIGHT - 2), f"{low:.3f}"]
    lines = [f"{label:>6} │{row}" for label, row in zip(labels, rows, strict=True)]
    return "\n".join([*lines, f"     α └{'─' * len(shown)} {curve[-1].tokens:,} tokens"])


def svg(curve: Sequence[Point]) -> str:
    """Return the same as an SVG image."""
    low, high = _range(curve)
    width, height = SVG_SIZE
    across, up = width - 2 * SVG_MARGIN, height - 2 * SVG_MARGIN
    last = max(curve[-1].tokens, 1)
    places = [
        (SVG_MARGIN + across * p.tokens / last, height - SVG_MARGIN - up * (p.acceptance - low) / (high - low))
        for p in curve
    ]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    bottom = height - SVG_MARGIN
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif"'
        f' font-size="13">\n<rect width="{width}" height="{height}" fill="white"/>\n'
        f'<path d="M{SVG_MARGIN} {SVG_MARGIN}V{bottom}H{width - SVG_MARGIN}" fill="none" stroke="black"/>\n'
        f'<polyline points="{line}" fill="none" stroke="steelblue" stroke-width="2"/>\n'
        f'<text x="4" y="{SVG_MARGIN + 4}">{high:.3f}</text>\n<text x="4" y="{bottom + 4}">{low:.3f}</text>\n'
        f'<text x="{SVG_MARGIN}" y="{SVG_MARGIN - 16}">α on held-out answers</text>\n'
        f'<text x="{width - SVG_MARGIN}" y="{bottom + 24}" text-anchor="end">{curve[-1].tokens:,} tokens</text>\n'
        "</svg>\n"
    )


def _range(curve: Sequence[Point]) -> tuple[float, float]:
    """Return the lowest and the highest acceptance, apart where they would be equal."""
    values = [point.acceptance for point in curve]
    return min(values), max(*values, min(values) + 1e-3)
