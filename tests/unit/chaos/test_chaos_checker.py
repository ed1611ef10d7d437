"""The checker of the chaos suite notices what must not be: a good history with one thing made wrong."""

from dataclasses import replace

import pytest

from tests.chaos.checker import violations
from tests.chaos.history import OK, Answer, History, Request, Stored, Stream

TOKENS = [7, 8, 9]


def history():
    """One session with a greedy answer of three tokens: cut off after two, resumed, had to its end."""
    answered = Request("s", 0, "greedy", 2, 1.0, 4.0, list(TOKENS), "abc", finishes=1, outcome=OK, resumptions=1)
    cut = Stream("s", 2, [(0, (7, 8))], status="UNAVAILABLE")
    resumed = Stream("s", 2, [(2, (9,))], finishes=1, status=OK)
    return History(
        expected={("greedy", 0): Answer(tuple(TOKENS), "abc")},
        requests=[answered],
        streams=[cut, resumed],
        stored={"s": Stored((1, 1, *TOKENS), 2, "abc")},
    )


def failed(**fields):
    """Return a request for the session that was cut off after one token."""
    return replace(
        Request("s", 0, "greedy", 2, 1.0, 2.0, [7], "a", outcome="UNAVAILABLE", reason="PEER_UNAVAILABLE"), **fields
    )


def test_a_good_history_is_good():
    assert violations(history()) == []


def test_a_failure_that_is_documented_and_made_good_later_is_good():
    seen = history()
    seen.requests.insert(0, failed())
    assert violations(seen) == []


def test_what_redis_has_lost_may_be_gone():
    seen = history()
    seen.losses.append(3.0)
    seen.requests = [failed(), failed(outcome="NOT_FOUND", tokens=[], text="")]
    seen.stored = {}
    assert violations(seen) == []


def _other_tokens(seen):
    seen.requests[0].tokens[1] = 5


def _other_text(seen):
    seen.requests[0].text = "abd"


def _too_few(seen):
    seen.requests[0].tokens.pop()


def _stored_otherwise(seen):
    seen.stored["s"] = Stored((1, 1, 7, 8, 6), 2, "abc")


def _stored_text_otherwise(seen):
    seen.stored["s"] = Stored((1, 1, *TOKENS), 2, "xbc")


def _shown_further(seen):
    seen.stored["s"] = Stored((1, 1, 7, 8), 2, "abc")


def _not_stored(seen):
    seen.stored = {}


def _two_streams_contradict(seen):
    seen.streams.append(Stream("s", 2, [(1, (4,))], status="CANCELLED"))


def _skipped(seen):
    seen.streams[0].shown.append((3, (9,)))


def _ends_twice(seen):
    seen.requests[0].finishes = 2


def _never_ends(seen):
    seen.requests[0].finishes = 0


def _goes_on(seen):
    seen.streams[1].after_finish = 1


def _ok_without_a_finish(seen):
    seen.streams[1].finishes = 0


def _fails_after_its_finish(seen):
    seen.streams[1].status, seen.streams[1].reason = "UNAVAILABLE", "NOT_READY"


def _fails_otherwise(seen):
    seen.requests.insert(0, failed(outcome="INTERNAL"))


def _gone_without_a_loss(seen):
    seen.requests.insert(0, failed(outcome="NOT_FOUND", tokens=[], text=""))


def _cannot_be_resumed(seen):
    seen.requests.append(failed(began=5.0, ended=6.0))


def _lost_by_a_rolling_restart(seen):
    seen.requests.insert(0, failed())
    seen.rolling.append((1.5, 2.5))


def _shown_before_its_commit(seen):
    seen.seen_wrong.append("shown before its commit")


@pytest.mark.parametrize(
    "spoil",
    [
        _other_tokens,
        _other_text,
        _too_few,
        _stored_otherwise,
        _stored_text_otherwise,
        _shown_further,
        _not_stored,
        _two_streams_contradict,
        _skipped,
        _ends_twice,
        _never_ends,
        _goes_on,
        _ok_without_a_finish,
        _fails_after_its_finish,
        _fails_otherwise,
        _gone_without_a_loss,
        _cannot_be_resumed,
        _lost_by_a_rolling_restart,
        _shown_before_its_commit,
    ],
)
def test_what_is_wrong_is_noticed(spoil):
    seen = history()
    spoil(seen)
    assert violations(seen)
