"""Where the time of one forward pass goes."""

import time

import torch


class PassClock:
    """Splits a pass into the model's part and what follows it.

    Off the CPU a forward pass returns before it has been computed, so the device notes the two moments itself. The last
    of them has long come when ``advance`` has copied its results to the host; only a pass without rows is waited for,
    lest the host run ahead of the device and calls that arrive later find it taken for seconds.
    """

    def __init__(self, device: torch.device) -> None:
        """Start the clock, just before the forward pass."""
        self._events: tuple[torch.Event, torch.Event] | None = None
        if device.type != "cpu":
            self._events = (torch.Event(device, enable_timing=True), torch.Event(device, enable_timing=True))
            self._events[0].record()
        self._started = time.perf_counter()
        self._forwarded = self._started

    def forwarded(self) -> None:
        """Note that the forward pass has been given to the device."""
        self._forwarded = time.perf_counter()
        if self._events:
            self._events[1].record()

    def stop(self) -> tuple[float, float]:
        """Return seconds in the forward pass and seconds after it."""
        if not self._events:
            return self._forwarded - self._started, time.perf_counter() - self._forwarded
        start, end = self._events
        end.synchronize()
        forward = start.elapsed_time(end) / 1000
        return forward, max(0.0, time.perf_counter() - self._started - forward)
