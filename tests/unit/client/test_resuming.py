"""The resumed answer equals the uncut one wherever the streams break."""

import itertools

import pytest

from client.failures import RequestFailed
from client.patience import RETRIES, Patience
from client.resuming import answer_events
from specdec.v1 import generation_pb2 as v1

# Rounds of (token id, text that became certain with it); the last text is held back until the end of the answer.
ROUNDS = [[(10, "On"), (11, "")], [(12, "ce ")], [(13, ""), (14, ""), (15, "upön")], [(16, " a")], [(17, "")]]
TOKENS = [token for made in ROUNDS for token in made]
FLUSHED = " time"
REQUEST = v1.GenerateRequest(session_id="s", prompt="p", expected_length=4)
CUT = RequestFailed("UNAVAILABLE", "cut")


class Coordinator:
    """Keeps the contract; stream number i breaks after cuts[i] events, and never when there is no such entry."""

    def __init__(self, cuts, *, ahead=0, request_lost=False):
        self.cuts, self.ahead, self.request_lost = list(cuts), ahead, request_lost
        self.begun, self.committed, self.requests = False, 0, []

    def send(self, request):
        self.requests.append(request)
        cut = self.cuts.pop(0) if self.cuts else None
        if request.HasField("resume_from"):
            assert self.begun
            received = request.resume_from
        else:
            if self.begun:
                raise RequestFailed("ABORTED", "not that length", reason="LENGTH_MISMATCH")
            if cut == 0 and self.request_lost:
                raise CUT
            self.begun, received = True, 0
        for number, event in enumerate(self.events(received)):
            if number == cut:
                self.commit(self.committed + self.ahead)
                raise CUT
            yield event

    def events(self, received):
        assert received <= self.committed
        if received < self.committed:
            yield self.event(TOKENS[received : self.committed], received)
        while self.committed < len(TOKENS):
            index = self.committed
            self.commit(index + 1)
            yield self.event(TOKENS[index : self.committed], index)
        yield v1.GenerateResponse(text=FLUSHED, finish_reason=v1.FINISH_REASON_LENGTH)

    def commit(self, at_least):
        for end in itertools.accumulate(len(made) for made in ROUNDS):
            if self.committed < at_least:
                self.committed = max(self.committed, end)

    def event(self, tokens, index):
        texts = [text for _, text in tokens]
        ids = [token for token, _ in tokens]
        return v1.GenerateResponse(index=index, token_ids=ids, text="".join(texts), token_texts=texts)

    def look(self, session_id):
        return v1.GetSessionResponse(session_id=session_id, prompt_length=9) if self.begun else None


def patience(pauses=None):
    record = [] if pauses is None else pauses
    return Patience(on_wait=lambda failure, pause: record.append(pause), sleep=lambda seconds: None)


def check_whole(coordinator):
    events = list(answer_events(REQUEST, coordinator.send, coordinator.look, patience()))
    assert [token for event in events for token in event.token_ids] == [token for token, _ in TOKENS]
    assert "".join(event.text for event in events) == "Once upön a time"
    assert [event.finish_reason for event in events if event.finish_reason] == [v1.FINISH_REASON_LENGTH]


def test_uncut():
    check_whole(Coordinator([]))


@pytest.mark.parametrize("ahead", [0, 1, 2])
@pytest.mark.parametrize("request_lost", [False, True])
def test_cut_at_every_pair_of_boundaries(ahead, request_lost):
    for cuts in itertools.product(range(len(ROUNDS) + 2), repeat=2):
        check_whole(Coordinator(cuts, ahead=ahead, request_lost=request_lost))


def test_resumes_from_the_number_of_tokens_received():
    coordinator = Coordinator([2])
    check_whole(coordinator)
    assert coordinator.requests[1] == v1.GenerateRequest(session_id="s", resume_from=3, expected_length=4)


def test_lost_request_is_made_again_as_it_was():
    coordinator = Coordinator([0], request_lost=True)
    check_whole(coordinator)
    assert coordinator.requests == [REQUEST, REQUEST]


def test_lost_goodbye_after_the_last_event_is_no_failure():
    check_whole(Coordinator([len(ROUNDS) + 1]))

    def send(request):
        yield v1.GenerateResponse(token_ids=[1], finish_reason=v1.FINISH_REASON_STOP)
        raise CUT

    assert len(list(answer_events(REQUEST, send, lambda session_id: None, patience()))) == 1


def test_stream_that_ends_without_a_finish_is_lost():
    streams = [[v1.GenerateResponse(token_ids=[1])], [v1.GenerateResponse(index=1, finish_reason=1)]]
    events = list(answer_events(REQUEST, lambda request: iter(streams.pop(0)), lambda session_id: None, patience()))
    assert len(events) == 2
    assert not streams


def test_gives_up_after_failures_in_a_row():
    coordinator, pauses = Coordinator([2] + [0] * 50), []
    stream = answer_events(REQUEST, coordinator.send, coordinator.look, patience(pauses))
    received = []
    with pytest.raises(RequestFailed) as raised:
        received.extend(stream)
    assert raised.value.code == "UNAVAILABLE"
    assert len(coordinator.requests) == len(pauses) + 1 == RETRIES + 1


def test_progress_renews_patience():
    def one_token_a_stream(request):
        index = request.resume_from
        finish = v1.FINISH_REASON_LENGTH if index == 3 * RETRIES else v1.FINISH_REASON_UNSPECIFIED
        yield v1.GenerateResponse(index=index, token_ids=[index], finish_reason=finish)
        raise CUT

    events = list(answer_events(REQUEST, one_token_a_stream, lambda session_id: None, patience()))
    assert [event.index for event in events] == list(range(3 * RETRIES + 1))


def test_refusals_are_not_repeated():
    calls = []

    def send(request):
        calls.append(request)
        raise RequestFailed("INVALID_ARGUMENT", "no", reason="INVALID_PARAMETER")
        yield

    with pytest.raises(RequestFailed, match="no"):
        list(answer_events(REQUEST, send, lambda session_id: None, patience()))
    assert len(calls) == 1


def test_aborted_at_once_is_a_refusal():
    coordinator = Coordinator([])
    coordinator.begun = True  # another's answer
    with pytest.raises(RequestFailed, match="not that length"):
        list(answer_events(REQUEST, coordinator.send, coordinator.look, patience()))


@pytest.mark.parametrize("prompt_length", [2, 4])
def test_busy_repeat_that_had_not_begun_is_made_again(prompt_length):
    outcomes = [CUT, RequestFailed("ABORTED", "busy", reason="SESSION_BUSY"), None]
    requests = []

    def send(request):
        requests.append(request)
        outcome = outcomes.pop(0)
        if outcome:
            raise outcome
        yield v1.GenerateResponse(token_ids=[1], finish_reason=v1.FINISH_REASON_STOP)

    before = v1.GetSessionResponse(prompt_length=prompt_length)  # an answer up to expected_length 4: not this request's
    assert len(list(answer_events(REQUEST, send, lambda session_id: before, patience()))) == 1
    assert requests == [REQUEST] * 3


@pytest.mark.parametrize("index", [0, 2])
def test_repeated_or_skipped_tokens_are_refused(index):
    events = [v1.GenerateResponse(token_ids=[1]), v1.GenerateResponse(index=index, token_ids=[2])]
    with pytest.raises(RequestFailed, match=f"token {index}"):
        list(answer_events(REQUEST, lambda request: iter(events), lambda session_id: None, patience()))


def test_events_after_the_end_are_refused():
    events = [v1.GenerateResponse(finish_reason=1), v1.GenerateResponse(text="more")]
    with pytest.raises(RequestFailed, match="after the end"):
        list(answer_events(REQUEST, lambda request: iter(events), lambda session_id: None, patience()))
