"""Whether something grows: a robust slope over time, and how much of it is too much; pure.

What was chosen before the first run: the first third of a run is warming up and does not count. Over the rest, the
Theil–Sen slope times the duration says what has been added; it may be a small share of the level, or a few where the
level is small. The share is far below what a leak leaves: in ten minutes, 1 % of a coordinator's memory is two
kilobytes an answer.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median

WARM_SHARE = 1 / 3
FEWEST_SAMPLES = 5


@dataclass(frozen=True, slots=True)
class Allowed:
    """What may be added while a run lasts and is no leak.

    Attributes:
        share: of the level.
        least: allowed whatever the level; in the unit of what is sampled.
    """

    share: float
    least: float


# Memory in MiB, the rest counted. Sessions come and go at random in Redis, hence the larger share; gRPC's threads and
# connections are pooled and come by ones.
ALLOWED = {
    "memory": Allowed(0.01, 0.25),
    "objects": Allowed(0.02, 300),
    "tasks": Allowed(0.0, 3),
    "descriptors": Allowed(0.0, 3),
    "threads": Allowed(0.0, 3),
    "caches": Allowed(0.0, 3),
    "keys": Allowed(0.2, 10),
}


@dataclass(frozen=True, slots=True)
class Growth:
    """What became of one quantity of one process after warming up.

    Attributes:
        level: median.
        grown: slope times duration, negative when it shrank.
        allowed: most that it may have grown.
    """

    level: float
    grown: float
    allowed: float

    @property
    def flat(self) -> bool:
        """Whether it has not grown beyond what is allowed."""
        return self.grown <= self.allowed


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Return the median of the slopes of all pairs of (time, value), as units of the value in one of time.

    Spikes, or a step near either end, do not turn it; a steady leak does, under noise too.

    Source: Theil 1950; Sen 1968, "Estimates of the regression coefficient based on Kendall's tau".
    """
    return median((later - value) / (then - time) for (time, value), (then, later) in combinations(points, 2))


def growth(points: Sequence[tuple[float, float]], allowed: Allowed) -> Growth:
    """Look at one quantity over a whole run.

    Args:
        points: (seconds, value) in order of time, from the beginning of the load to its end.
        allowed: what may be added.

    Raises:
        ValueError: there are too few points after warming up to say anything.
    """
    begin, end = points[0][0], points[-1][0]
    warm = [point for point in points if point[0] >= begin + WARM_SHARE * (end - begin)]
    if len(warm) < FEWEST_SAMPLES:
        raise ValueError(f"{len(warm)} samples after warming up say nothing; {FEWEST_SAMPLES} are needed")
    level = median(value for _, value in warm)
    return Growth(level, slope(warm) * (warm[-1][0] - warm[0][0]), max(allowed.least, allowed.share * level))


def growths(samples: Sequence[tuple[float, Mapping[tuple[str, str], float]]]) -> dict[tuple[str, str], Growth]:
    """Look at everything that was sampled, by (process, quantity)."""
    return {
        (process, quantity): growth([(time, held[process, quantity]) for time, held in samples], ALLOWED[quantity])
        for process, quantity in samples[0][1]
    }
