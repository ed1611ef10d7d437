"""Pauses grow, are bounded, and respect the server's wish and the caller's time."""

import pytest

from client.failures import RequestFailed
from client.patience import FIRST_PAUSE_SECONDS, LONGEST_ASKED_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS, RETRIES, Patience

AWAY = RequestFailed("UNAVAILABLE", "away")


def patience(seconds=None):
    pauses, now = [], [0.0]

    def sleep(pause):
        pauses.append(pause)
        now[0] += pause

    return Patience(seconds, on_wait=lambda failure, pause: None, sleep=sleep, clock=lambda: now[0]), pauses


def test_pauses_grow_within_bounds_and_end():
    waiting, pauses = patience()
    for _ in range(RETRIES):
        waiting.wait(AWAY)
    with pytest.raises(RequestFailed):
        waiting.wait(AWAY)
    assert len(pauses) == RETRIES
    for number, pause in enumerate(pauses):
        longest = min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2**number)
        assert longest / 2 <= pause <= longest


def test_server_may_ask_for_longer_within_reason():
    waiting, pauses = patience()
    waiting.wait(RequestFailed("UNAVAILABLE", "draining", retry_seconds=7))
    waiting.wait(RequestFailed("UNAVAILABLE", "draining", retry_seconds=3600))
    assert pauses == [7, LONGEST_ASKED_PAUSE_SECONDS]


def test_no_pause_beyond_the_time_given():
    waiting, pauses = patience(5.0)
    with pytest.raises(RequestFailed):
        waiting.wait(RequestFailed("UNAVAILABLE", "draining", retry_seconds=6))
    assert not pauses
    assert waiting.remaining() == 5.0


def test_renewed():
    waiting, pauses = patience()
    for _ in range(3 * RETRIES):
        waiting.wait(AWAY)
        waiting.renew()
    assert max(pauses) <= FIRST_PAUSE_SECONDS


@pytest.mark.parametrize(
    ("code", "reason", "retry_seconds", "lost", "exit_code"),
    [
        ("UNAVAILABLE", "", 0, True, 2),
        ("UNAVAILABLE", "NOT_READY", 0, True, 2),
        ("RESOURCE_EXHAUSTED", "QUEUE_FULL", 1, True, 2),
        ("RESOURCE_EXHAUSTED", "CACHE_FULL", 0, False, 2),
        ("INTERNAL", "", 0, True, 4),
        ("INTERNAL", "NUMERICAL_FAILURE", 0, False, 4),
        ("DATA_LOSS", "DATA_LOST", 0, False, 4),
        ("INVALID_ARGUMENT", "INVALID_PARAMETER", 0, False, 1),
        ("NOT_FOUND", "SESSION_NOT_FOUND", 0, False, 3),
        ("DEADLINE_EXCEEDED", "", 0, False, 5),
    ],
)
def test_what_is_tried_again_and_how_it_exits(code, reason, retry_seconds, lost, exit_code):
    failure = RequestFailed(code, "text\nof two lines", reason=reason, retry_seconds=retry_seconds)
    assert failure.lost == lost
    assert failure.exit_code == exit_code
    assert str(failure) == "text of two lines"
