"""A conversation goes on from what has been shown, or says that it cannot."""

import pytest

from client.conversation import Conversation
from client.display import Display
from client.failures import RequestFailed
from client.options import AnswerOptions
from specdec.v1 import generation_pb2 as v1

PROMPT_LENGTH = 3


class Coordinators:
    """Begins every answer with two tokens; then it is stopped, broken off or complete, as ``ends`` says."""

    def __init__(self, *ends):
        self.ends, self.requests, self.held = list(ends), [], None

    def answer(self, request, seconds):
        self.requests.append(request)
        end = self.ends.pop(0)
        if end is not refused:
            self.held = [*range(request.expected_length + PROMPT_LENGTH + 2)]
            yield v1.GenerateResponse(token_ids=self.held[-2:], text="ok")
        if end is not None:
            raise end
        yield v1.GenerateResponse(finish_reason=v1.FINISH_REASON_STOP, session_length=len(self.held))

    def session(self, session_id):
        return None if self.held is None else v1.GetSessionResponse(token_ids=self.held)


refused = RequestFailed("UNAVAILABLE", "away")


def say(conversation, *messages):
    for message in messages:
        try:
            conversation.say(message)
        except RequestFailed as failure:
            if failure.code != "UNAVAILABLE":
                raise


def conversation_with(coordinators, **options):
    return Conversation(coordinators, AnswerOptions(**options), Display(show_tokens=False, json=False))


@pytest.mark.parametrize("session_id", [None, "mine"])
def test_every_message_says_what_it_goes_on_from(session_id):
    coordinators = Coordinators(refused, KeyboardInterrupt(), None, RequestFailed("UNAVAILABLE", "away"), None)
    say(conversation_with(coordinators, session_id=session_id), "a", "b", "c", "d", "e")
    assert [request.expected_length for request in coordinators.requests] == [0, 0, 5, 10, 15]
    assert all(request.HasField("expected_length") for request in coordinators.requests)


@pytest.mark.parametrize("kept", [None, [0]], ids=["all", "the end"])
@pytest.mark.parametrize("session_id", [None, "mine"])
def test_a_conversation_that_the_server_has_lost_is_not_begun_anew_in_silence(kept, session_id):
    coordinators = Coordinators(KeyboardInterrupt(), None)
    conversation = conversation_with(coordinators, session_id=session_id)
    say(conversation, "a")
    coordinators.held = kept
    with pytest.raises(RequestFailed, match="lost") as failure:
        say(conversation, "b")
    assert failure.value.code == "ABORTED"
    assert len(coordinators.requests) == 1
