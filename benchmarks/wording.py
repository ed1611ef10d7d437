"""Numbers as the tables and plots of all reports show them."""

NOTHING = "–"


def number(value: float | None, digits: int) -> str:
    """Return a number with so many digits after the point; a dash for none."""
    return NOTHING if value is None else f"{value:.{digits}f}"


def median(figures: dict[str, float] | None, digits: int) -> str:
    """Return the median of a spread; a dash for none."""
    return NOTHING if figures is None else number(figures["median"], digits)


def quartiles(figures: dict[str, float] | None, digits: int) -> str:
    """Return median and quartiles of a spread; a dash for none."""
    if figures is None:
        return NOTHING
    return f"{figures['median']:.{digits}f} ({figures['low']:.{digits}f}–{figures['high']:.{digits}f})"
