"""One request from sending it to the last event."""

from client.connection import Coordinators
from client.display import Display
from client.failures import RequestFailed
from client.measurement import Measurement
from client.requests import new_session_id, plain_request
from specdec.v1 import generation_pb2 as v1


def show_answer(
    coordinators: Coordinators,
    request: v1.GenerateRequest,
    display: Display,
    measurement: Measurement,
    seconds: float | None,
) -> None:
    """Stream an answer to the display and measure it; what was shown stays measured when the answer breaks off.

    Raises:
        RequestFailed: the answer is not complete.
    """
    measurement.start()
    try:
        for event in coordinators.answer(request, seconds):
            measurement.take(event)
            display.show(event)
    finally:
        display.end_line()


def answer_without_speculation(coordinators: Coordinators, session_id: str, seconds: float | None) -> Measurement:
    """Answer a session's latest request once more with gamma 0, in a session of its own that is deleted afterwards.

    Raises:
        RequestFailed: the answer is not complete.
    """
    session = coordinators.session(session_id)
    if session is None:
        raise RequestFailed("NOT_FOUND", f"session {session_id} is gone, so that there is nothing to compare with")
    request = plain_request(session, new_session_id())
    measurement = Measurement().start()
    for event in coordinators.answer(request, seconds):
        measurement.take(event)
    coordinators.delete(request.session_id)
    return measurement
