"""How far counts are from a law, in standard deviations."""

import math
from collections import Counter
from collections.abc import Hashable, Mapping

POOLED_BELOW = 20.0  # expected counts of a cell
FAILS_ABOVE = 5.0  # fixed beforehand


def z_score(observed: Counter, law: Mapping[Hashable, float]) -> float:
    """Return (chi-square - degrees of freedom) / its standard deviation; infinite when the law rules something out."""
    count = observed.total()
    if any(law.get(cell, 0.0) == 0.0 for cell in observed):
        return math.inf
    pairs = sorted((chance * count, observed[cell]) for cell, chance in law.items() if chance > 0)
    cells: list[tuple[float, float]] = []
    expected, seen = 0.0, 0.0
    for more_expected, more_seen in pairs:
        expected, seen = expected + more_expected, seen + more_seen
        if expected >= POOLED_BELOW:
            cells.append((expected, seen))
            expected, seen = 0.0, 0.0
    if expected:
        last = cells.pop()
        cells.append((last[0] + expected, last[1] + seen))
    chi_square = sum((seen - expected) ** 2 / expected for expected, seen in cells)
    freedom = len(cells) - 1
    return (chi_square - freedom) / math.sqrt(2 * freedom)
