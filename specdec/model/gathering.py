"""Whether a pass waits for sessions that are due: who comes just after its begin waits for its end, and for another."""

import time
from collections.abc import Sequence

SMOOTHING = 0.1  # weight of the latest of a kind
OUTLIER = 3.0  # times the usual rest; what is longer was no rest between two rounds
DEVIATIONS = 2.0  # beyond the usual rest until which a session may still come


class PassCost:
    """Seconds of a pass as a line over its tokens: a part that is paid once, and a part for each token.

    Attributes:
        once: seconds whoever is in it.
        token: seconds a token.
    """

    def __init__(self) -> None:
        """Know nothing: a pass costs nothing."""
        self.once = 0.0
        self.token = 0.0
        self._tokens = self._seconds = self._variance = self._covariance = 0.0

    def observe(self, tokens: int, seconds: float) -> None:
        """Take a pass in. By decayed least squares."""
        if not self._seconds:
            self._tokens, self._seconds = float(tokens), seconds
        more, longer = tokens - self._tokens, seconds - self._seconds
        self._tokens += SMOOTHING * more
        self._seconds += SMOOTHING * longer
        self._variance = (1 - SMOOTHING) * (self._variance + SMOOTHING * more * more)
        self._covariance = (1 - SMOOTHING) * (self._covariance + SMOOTHING * more * longer)
        slope = self._covariance / self._variance if self._variance else 0.0
        self.token = min(max(slope, 0.0), self._seconds / self._tokens)
        self.once = self._seconds - self.token * self._tokens


class Gathering:
    """Weighs what those who are ready lose by waiting against the pass that those who are due are spared."""

    def __init__(self) -> None:
        """Know nothing: nobody is due."""
        self.cost = PassCost()
        self._rest = 0.0
        self._deviation = 0.0
        self._share = 1.0

    def rested(self, seconds: float) -> None:
        """Take in how long a session has rested until its next call; below 0, the call came before the last had ended.

        Such a call, of a client that has left one and makes another, says nothing of the time between two rounds. Taken
        in, it would put the usual rest below 0, whose multiples no later rest can raise again.
        """
        if seconds < 0:
            return
        if not self._rest:
            self._rest = seconds
        off = min(seconds, OUTLIER * self._rest) - self._rest
        self._rest += SMOOTHING * off
        self._deviation += SMOOTHING * (abs(off) - self._deviation)

    def passed(self, sessions: int, tokens: int, seconds: float) -> None:
        """Take in what a pass has taken."""
        self.cost.observe(tokens, seconds)
        self._share += SMOOTHING * (tokens / sessions - self._share)

    def wait_seconds(self, resting_since: Sequence[float], ready: int) -> float:
        """Return how long to wait for sessions that are due before a pass begins; 0: not at all.

        With k of them everybody waits until the last has come, e seconds; those who are ready wait for the tokens of
        the others, too; each of the k is spared the part of a pass of its own that is paid once. Who has rested longer
        than is usual is not waited for.

        Args:
            resting_since: monotonic seconds at which each of the resting sessions began to.
            ready: calls that could be in the pass now.
        """
        latest = self._rest + DEVIATIONS * self._deviation - time.monotonic()
        due = sorted(since + latest for since in resting_since if since + latest > 0)
        best, wait = 0.0, 0.0
        for number, seconds in enumerate(due, start=1):
            lost = (ready + number) * seconds + ready * number * self._share * self.cost.token
            if number * self.cost.once - lost > best:
                best, wait = number * self.cost.once - lost, seconds
        return wait
