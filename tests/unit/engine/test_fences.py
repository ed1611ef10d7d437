"""The highest fence of each session, remembered within bounds."""

import pytest

from specdec.errors import StaleFence
from specdec.fence import Fence
from specdec.model.fences import Fences


def test_higher_supersedes_equal_does_not_lower_is_refused():
    fences = Fences()
    assert not fences.admit("s", Fence(2, "a"))
    assert not fences.admit("s", Fence(2, "a"))
    assert fences.admit("s", Fence(2, "b"))
    with pytest.raises(StaleFence) as refused:
        fences.admit("s", Fence(2, "a"))
    assert refused.value.metadata == {"counter": "2", "owner": "b"}
    assert not fences.admit("other", Fence(1, "a"))


def test_only_the_sessions_heard_of_last_are_remembered():
    fences = Fences(kept=2)
    fences.admit("one", Fence(5, "a"))
    fences.admit("two", Fence(5, "a"))
    fences.admit("one", Fence(5, "a"))
    fences.admit("three", Fence(5, "a"))
    assert not fences.admit("two", Fence(1, "a"))
    with pytest.raises(StaleFence):
        fences.admit("three", Fence(4, "a"))
