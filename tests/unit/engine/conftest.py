"""A clock that stands still for what reckons with times of resting."""

import pytest

from specdec.model import gathering, rest_times


class Clock:
    now = 100.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    for module in (gathering, rest_times):
        monkeypatch.setattr(module, "time", clock)
    return clock
