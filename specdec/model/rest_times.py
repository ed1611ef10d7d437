"""When the next calls are due: a pass ahead that would make them wait must be worth it."""

import time
from collections.abc import Iterable

SMOOTHING = 0.1  # weight of the latest time


class RestTimes:
    """Typical times of resting between two calls and of a pass ahead, and what follows for the next such pass."""

    def __init__(self) -> None:
        """Know nothing: no call is due."""
        self._rest = 0.0
        self._pass = 0.0
        self._quiet_until = 0.0

    @property
    def quiet_seconds(self) -> float:
        """For how long a call is due that no pass should delay."""
        return max(0.0, self._quiet_until - time.monotonic())

    def rested(self, seconds: float) -> None:
        """Take in how long a session has rested until its next call."""
        self._rest = _smoothed(self._rest, seconds)

    def passed(self, seconds: float) -> None:
        """Take in how long a pass ahead has taken."""
        self._pass = _smoothed(self._pass, seconds)

    def worth_a_pass(self, likelihood: float, resting_since: Iterable[float]) -> bool:
        """Weigh the pass that a call is spared against the time that calls wait for this one to end.

        A session that has rested for longer than usual may do so for long: its call is not due any more.

        Args:
            likelihood: that the pass is of use.
            resting_since: monotonic seconds at which each of the resting sessions began to.
        """
        if not self._rest:
            return True
        now = time.monotonic()
        late = [now + self._pass - since - self._rest for since in resting_since]
        if sum(seconds for seconds in late if 0 < seconds < 2 * self._pass) <= likelihood * self._pass:
            return True
        self._quiet_until = now + self._pass
        return False


def _smoothed(typical: float, latest: float) -> float:
    return typical + SMOOTHING * (latest - typical) if typical else latest
