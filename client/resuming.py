"""One answer out of as many streams as it takes, without a repeated or missing token.

An event is received whole or not at all, and the text released after n tokens is a function of those tokens alone. So
the number of tokens received is all that a lost stream leaves to remember: the next one is asked for from there.

Before the first event nobody knows whether the lost request began. It is made again with the same session id and
expected_length; ABORTED then means that it may have begun, and the session's prompt_length says whether it did.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from client.failures import RequestFailed
from client.patience import Patience
from specdec.v1 import generation_pb2 as v1

Send = Callable[[v1.GenerateRequest], Iterator[v1.GenerateResponse]]
Look = Callable[[str], v1.GetSessionResponse | None]


@dataclass(slots=True)
class Progress:
    """How much of an answer has arrived.

    Attributes:
        request: what was asked for, with session_id and expected_length.
        tokens: number received.
        begun: whether the server has the request, so that it must not be made again.
        finished: whether the last event has arrived.
    """

    request: v1.GenerateRequest
    tokens: int = 0
    begun: bool = False
    finished: bool = False

    def next_request(self) -> v1.GenerateRequest:
        """What to send now: the request, or the resumption of its answer."""
        if not self.begun:
            return self.request
        asked = self.request
        return v1.GenerateRequest(
            session_id=asked.session_id, resume_from=self.tokens, expected_length=asked.expected_length
        )

    def take(self, event: v1.GenerateResponse) -> None:
        """Count an event.

        Raises:
            RequestFailed: it does not follow what has arrived.
        """
        if self.finished:
            raise RequestFailed("INTERNAL", "the server went on after the end of the answer", reason="CONTRACT")
        if event.token_ids and event.index != self.tokens:
            message = f"the server sent token {event.index} of the answer where token {self.tokens} was due"
            raise RequestFailed("INTERNAL", message, reason="CONTRACT")
        self.begun = True
        self.tokens += len(event.token_ids)
        self.finished = event.finish_reason != v1.FINISH_REASON_UNSPECIFIED


def answer_events(
    request: v1.GenerateRequest, send: Send, look: Look, patience: Patience
) -> Iterator[v1.GenerateResponse]:
    """Give every event of an answer once, in order, whatever happens to the streams that bring them.

    Args:
        request: with session_id and expected_length, so that making it again is safe.
        send: opens a stream; raises RequestFailed where it breaks.
        look: the session of an id, or None when there is none.
        patience: asked before every further stream.

    Raises:
        RequestFailed: the server refuses, or patience is at an end.
    """
    progress = Progress(request)
    repeated = False
    while True:
        try:
            for event in send(progress.next_request()):
                progress.take(event)
                patience.renew()
                yield event
            if progress.finished:
                return
            raise RequestFailed("UNAVAILABLE", "the stream ended before the answer did", reason="STREAM_CUT")
        except RequestFailed as failure:
            if progress.finished and failure.lost:
                return  # the answer is whole; only the goodbye was lost
            refused_repeat = repeated and not progress.begun and failure.code == "ABORTED"
            if refused_repeat and _has_begun(request, look):
                progress.begun = True
                continue
            if not (failure.lost or refused_repeat):
                raise
            patience.wait(failure)
            repeated = True


def _has_begun(request: v1.GenerateRequest, look: Look) -> bool:
    session = look(request.session_id)
    return session is not None and session.prompt_length > request.expected_length
