"""A short run of ``make soak`` with one process that leaks: it is found out, and in the end nothing else is held."""

import pytest

from tests.soak.load import Way
from tests.soak.run import run

LEAKING = "draft-1"


@pytest.mark.long
def test_a_process_that_leaks_fails_and_nothing_is_left_behind(tmp_path):
    result = run(20, 6, tmp_path, leaking=LEAKING)
    assert result.visits.keys() == set(Way)
    assert not result.growths[LEAKING, "memory"].flat
    assert any(line.startswith(f"memory of {LEAKING} grew") for line in result.violations)
    # In so short a run others may still be warming up; but nobody failed, nothing is left, and all ended in order.
    assert not [line for line in result.violations if " grew by " not in line]
