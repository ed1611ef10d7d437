"""``specdec chat``: every line is a message of one session."""

import sys
import time
from collections.abc import Iterator

from client.answering import show_answer
from client.connection import Coordinators
from client.display import Display
from client.failures import RequestFailed
from client.measurement import Measurement, together
from client.options import AnswerOptions
from client.requests import base_request, new_session_id, valid_text
from specdec.v1 import generation_pb2 as v1

PROMPT = "> "
SETTLE_SECONDS = 30.0  # longer than a dead coordinator's lease may run
POLL_SECONDS = 0.1


def messages(display: Display) -> Iterator[str]:
    """Read messages until /exit or the end of input; empty lines are none.

    On a terminal there is a prompt, and Ctrl-C only drops the line that is being typed.
    """
    interactive = sys.stdin.isatty()
    while True:
        try:
            line = _terminal_line() if interactive else sys.stdin.readline()
        except KeyboardInterrupt:
            if not interactive:
                raise
            display.note("\n(/exit or Ctrl-D ends)")
            continue
        if not line or line.strip() == "/exit":
            return
        if line.strip():
            yield line.strip()


def _terminal_line() -> str:
    """One line with its newline, or nothing at the end of input."""
    if not sys.stdout.isatty():  # the prompt must not go where the text goes
        print(PROMPT, end="", file=sys.stderr, flush=True)
        return sys.stdin.readline()
    try:
        return input(PROMPT) + "\n"
    except EOFError:
        print(file=sys.stderr)
        return ""


class Conversation:
    """A session and what is known of it.

    Attributes:
        session_id: of the whole conversation.
        measurements: of its answers.
    """

    def __init__(self, coordinators: Coordinators, options: AnswerOptions, display: Display) -> None:
        """Begin a new session, or go on with the one that the flags name."""
        self.session_id = options.session_id or new_session_id()
        self.measurements: list[Measurement] = []
        self._coordinators = coordinators
        self._options = options
        self._display = display
        # Committed tokens; None where only the server knows: another's session, or an answer that broke off.
        self._length: int | None = None if options.session_id else 0
        self._shown_length = 0  # that many at least, from what has been shown: a server that holds fewer has lost some

    def say(self, message: str) -> None:
        """Send a message and show the answer. Ctrl-C stops the answer, not the conversation.

        Raises:
            RequestFailed: there is no complete answer; the next message may be sent all the same.
        """
        measurement = Measurement()
        try:
            length = self._length if self._length is not None else self._settled_length()
            request = base_request(self._options, self.session_id, length)
            request.messages.add(role="user", content=valid_text(message, "message"))
            self._length, self._shown_length = None, length
            show_answer(self._coordinators, request, self._display, measurement, self._options.timeout)
            self._length = measurement.session_length
        except KeyboardInterrupt:
            self._display.note("(stopped)")
        finally:
            if measurement.tokens:
                self._shown_length += measurement.tokens
                self.measurements.append(measurement)

    def report(self) -> None:
        """Show the counts of all answers together."""
        if self.measurements:
            self._display.table([("", together(self.measurements))])
            self._display.note(f"session {self.session_id}")

    def _settled_length(self) -> int:
        """Committed tokens once nobody works on the session: a stopped answer takes a moment to end.

        Raises:
            RequestFailed: it does not end, or the session no longer holds what has been shown.
        """
        give_up = time.monotonic() + SETTLE_SECONDS
        while True:
            session = self._coordinators.session(self.session_id)
            if session is None or session.state != v1.SESSION_STATE_RUNNING:
                length = len(session.token_ids) if session else 0
                if length < self._shown_length:
                    message = f"session {self.session_id} was lost or deleted; a message would begin a new conversation"
                    raise RequestFailed("ABORTED", message)
                return length
            if time.monotonic() > give_up:
                raise RequestFailed("ABORTED", f"session {self.session_id} is still answering elsewhere")
            time.sleep(POLL_SECONDS)


def converse(conversation: Conversation, said: Iterator[str], display: Display) -> None:
    """Send every message; at a terminal a failure is told and the conversation goes on.

    Raises:
        RequestFailed: a message was refused and nobody is there to send another.
    """
    for message in said:
        try:
            conversation.say(message)
        except RequestFailed as failure:
            if not sys.stdin.isatty():
                raise
            display.note(f"specdec: {failure}")
