"""What all tests share: each carries the marker of its folder and that folder's time limit."""

from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis.internal.conjecture import providers

from tests.ports import held_port

__all__ = ["held_port"]

TESTS = Path(__file__).parent
# Seconds for one test, its fixtures included; a test's own @pytest.mark.timeout wins. Generous: the limit is there to
# end what hangs, on a machine that may be busy.
TIME_LIMITS = {"unit": 120, "integration": 120, "statistical": 180, "e2e": 300, "chaos": 600}
LONG_SECONDS = 3600

# Hypothesis draws the same examples every time and looks at no clock. `make verify` draws others: what they find is a
# fault that nobody who changes something else should have to meet. No numbers and words are taken from our
# sources, either: which of them are imported depends on the tests that have run before in the process.
pytest.MonkeyPatch().setattr(providers, "is_local_module_file", lambda _: False)
settings.register_profile("long", settings.get_profile("ci"), derandomize=False)
settings.load_profile("ci")


@pytest.hookimpl(tryfirst=True)  # before the groups are read
def pytest_collection_modifyitems(items):
    for item in items:
        folder = item.path.relative_to(TESTS).parts[0]
        if folder not in TIME_LIMITS:
            raise pytest.UsageError(f"{item.path}: tests live in one of {', '.join(TIME_LIMITS)}")
        item.add_marker(getattr(pytest.mark, folder))
        if folder == "e2e":  # one test process for all of them: they share systems of several processes
            item.add_marker(pytest.mark.xdist_group(folder))
        if item.get_closest_marker("timeout") is None:
            seconds = LONG_SECONDS if item.get_closest_marker("long") else TIME_LIMITS[folder]
            item.add_marker(pytest.mark.timeout(seconds))
