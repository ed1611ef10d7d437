"""How often and how long to wait before a request is made again."""

import random
import time
from collections.abc import Callable

from client.failures import RequestFailed

RETRIES = 6
FIRST_PAUSE_SECONDS = 0.2
LONGEST_PAUSE_SECONDS = 5.0
LONGEST_ASKED_PAUSE_SECONDS = 30.0  # no server makes us wait longer than this


class Patience:
    """Counts failures in a row and the time left for one answer.

    Attributes:
        failures: since something last arrived.
    """

    def __init__(
        self,
        seconds: float | None = None,
        *,
        on_wait: Callable[[RequestFailed, float], None],
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start the clock.

        Args:
            seconds: time for everything together; None for no limit.
            on_wait: told the failure and the pause in seconds before each wait.
            sleep: waits that many seconds.
            clock: seconds from any origin.
        """
        self._clock = clock
        self._deadline = None if seconds is None else clock() + seconds
        self._on_wait = on_wait
        self._sleep = sleep
        self.failures = 0

    def remaining(self) -> float | None:
        """Seconds left, or None without a limit."""
        return None if self._deadline is None else max(0.0, self._deadline - self._clock())

    def renew(self) -> None:
        """Forget past failures: something arrived."""
        self.failures = 0

    def wait(self, failure: RequestFailed) -> None:
        """Pause before the next try: twice as long each time, jittered, at least as long as the server asks.

        Raises:
            RequestFailed: the failure itself, when there were too many or time is too short for another try.
        """
        self.failures += 1
        pause = min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2 ** (self.failures - 1)) * random.uniform(0.5, 1.0)
        pause = max(pause, min(failure.retry_seconds, LONGEST_ASKED_PAUSE_SECONDS))
        remaining = self.remaining()
        if self.failures > RETRIES or (remaining is not None and pause >= remaining):
            raise failure
        self._on_wait(failure, pause)
        self._sleep(pause)
