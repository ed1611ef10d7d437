"""Numbers, and what they say of goals, as the tables and texts of all reports show them."""

from collections.abc import Mapping, Sequence

NOTHING = "–"
ADAPTIVE_SHARE = 0.95  # of the pace of the best fixed gamma, that adaptive gamma should have
AGAINST_PLAIN = 0.97  # of the pace of gamma 0, never less


def against_goal(what: str, found: Mapping[str, float], goal: float) -> str:
    """Say in how many settings something reaches a goal, and where by how much it does not.

    Args:
        what: is compared.
        found: at least one setting, with its figure.
        goal: the least it should be.
    """
    missed = {setting: figure for setting, figure in found.items() if figure < goal}
    if not missed:
        return (
            f"{what} is {min(found.values()):.2f} or more in all {counted(len(found), 'setting')} and meets {goal:g}."
        )
    listed = "; ".join(f"{setting}: {_below(figure, goal)}" for setting, figure in missed.items())
    settings = f"{len(found) - len(missed)} of {counted(len(found), 'setting')}"
    return f"{what} meets {goal:g} in {settings} and misses it at {listed}."


def said_of_goals(said: Sequence[str]) -> str:
    """Return what there is to say of goals as a list in Markdown."""
    return "\n".join(["Goals:", "", *(f"- {one}" for one in said)])


def _below(figure: float, goal: float) -> str:
    """Return a figure with as many digits as tell it from the goal, three at most."""
    short = f"{figure:.2f}"
    return short if float(short) < goal else f"{figure:.3f}"


def adaptive_goals(shares: Mapping[str, float], against_plain: Mapping[str, float]) -> list[str]:
    """Say where adaptive gamma reaches its goals.

    Args:
        shares: by setting, its pace against the best fixed gamma's.
        against_plain: by setting, its pace against that of gamma 0.
    """
    return [
        against_goal("Adaptive gamma's pace against the best fixed one", shares, ADAPTIVE_SHARE),
        against_goal("Against gamma 0 it", against_plain, AGAINST_PLAIN),
    ]


def counted(count: float, noun: str) -> str:
    """Return how many there are of something: ``1 lap``, ``2 laps``."""
    return f"{count:g} {noun}" + ("" if count == 1 else "s")


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
