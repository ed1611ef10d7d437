"""Counts follow the events, and the server's usage has the last word."""

from client.measurement import Measurement, together
from specdec.v1 import generation_pb2 as v1


def measured(*events, seconds=(0.0, 0.5, 1.0, 2.0)):
    times = iter(seconds)
    measurement = Measurement(clock=lambda: next(times)).start()
    for event in events:
        measurement.take(event)
    return measurement


def speculating(number, gamma, sources, fallback=0):
    made = v1.Round(number=number, gamma=gamma, fallback=fallback)
    return v1.GenerateResponse(token_ids=range(len(sources)), sources=sources, text="x", round=made)


FIRST = speculating(0, 4, [v1.TOKEN_SOURCE_ACCEPTED, v1.TOKEN_SOURCE_ACCEPTED, v1.TOKEN_SOURCE_CORRECTION])
SECOND = speculating(1, 0, [v1.TOKEN_SOURCE_TARGET_ONLY], v1.FALLBACK_REASON_DRAFT_UNAVAILABLE)
USAGE = v1.Usage(completion_tokens=4, rounds=5, spec_rounds=4, spec_draft_tokens=16, spec_accepted_tokens=12)
LAST = v1.GenerateResponse(
    finish_reason=v1.FINISH_REASON_STOP, matched_stop="###", usage=USAGE, session_length=9, text="y"
)


def test_unfinished_answer_is_counted_from_its_events():
    rows = dict(measured(FIRST, SECOND).rows())
    assert rows == {
        "rounds": "2",
        "draft tokens": "4",
        "acceptance": "50.0%",
        "tokens a round": "2.00",
        "fallback rounds": "1",
        "time to first token": "500 ms",
        "tokens a second": "4.0",
        "tokens": "4",
        "finish reason": "not finished",
    }


def test_usage_has_the_last_word():
    measurement = measured(FIRST, SECOND, LAST)
    rows = dict(measurement.rows())
    assert rows["rounds"] == "5"
    assert rows["acceptance"] == "75.0%"
    assert rows["tokens a second"] == "2.0"
    assert rows["finish reason"] == "stop '###'"
    assert measurement.session_length == 9
    assert measurement.text == "xxy"


def test_nothing_divides_by_zero():
    rows = dict(measured().rows())
    assert rows["acceptance"] == "-"
    assert rows["tokens a round"] == "-"
    assert rows["tokens a second"] == "0.0"


def test_together_adds_up():
    rows = dict(together([measured(FIRST, SECOND), measured(FIRST, SECOND, LAST, seconds=(0, 1.5, 2, 3))]).rows())
    assert rows["tokens"] == "8"
    assert rows["rounds"] == "7"
    assert rows["time to first token"] == "1000 ms"
    assert rows["tokens a second"] == "2.0"
