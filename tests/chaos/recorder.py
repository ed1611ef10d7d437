"""Writes down the streams that pass to clients, and looks at once whether what is shown is committed."""

import time
from typing import Any

import redis.asyncio
from google.rpc import error_details_pb2, status_pb2
from redis.exceptions import RedisError

from specdec.prefix import tokens_of
from specdec.v1 import generation_pb2 as v1
from tests.chaos.call_proxy import Tap
from tests.chaos.history import History, Stream

DETAILS = "grpc-status-details-bin"


class Recorder(Tap):
    """Fills a history.

    Attributes:
        history: is filled.
        store: the Redis of now, asked beside all links; None while it is away.
    """

    def __init__(self, history: History) -> None:
        """Record into a history."""
        self.history = history
        self.store: redis.asyncio.Redis | None = None
        self._prompt_lengths: dict[str, int] = {}

    def begin(self, request: bytes) -> Stream:
        """Begin a stream; inputs are text of one byte a token."""
        asked = v1.GenerateRequest.FromString(request)
        if not asked.HasField("resume_from"):
            self._prompt_lengths[asked.session_id] = asked.expected_length + len(asked.prompt)
        stream = Stream(asked.session_id, self._prompt_lengths.get(asked.session_id, 0))
        self.history.streams.append(stream)
        return stream

    async def event(self, stream: Any, message: bytes) -> None:
        """Take an event down and compare it with what Redis holds at this moment."""
        event = v1.GenerateResponse.FromString(message)
        tokens = tuple(event.token_ids)
        stream.after_finish += bool(stream.finishes)
        stream.finishes += bool(event.finish_reason)
        if tokens:
            stream.shown.append((event.index, tokens))
            await self._compare(stream, stream.prompt_length + event.index, tokens)

    def end(self, stream: Any, status: str, trailing: Any) -> None:
        """Take the end down."""
        stream.status, stream.reason = status, _reason(trailing)

    async def _compare(self, stream: Stream, start: int, tokens: tuple[int, ...]) -> None:
        asked = time.monotonic()
        if self.store is None:
            return
        try:
            key = f"specdec:{{{stream.session_id}}}:tokens"
            held = tuple(tokens_of(await self.store.getrange(key, 4 * start, 4 * (start + len(tokens)) - 1)))
        except RedisError:  # it is being killed; what it holds is looked at in the end
            return
        if held != tokens and not any(lost > asked - LOSING_SECONDS for lost in self.history.losses):
            self.history.seen_wrong.append(
                f"{stream.session_id} was shown {tokens} at position {start} when {held} was committed there"
            )


# An event that was on its way when Redis lost what it held may be compared as long after it.
LOSING_SECONDS = 5.0


def _reason(trailing: Any) -> str:
    for key, value in trailing or ():
        if key == DETAILS:
            for detail in status_pb2.Status.FromString(value).details:
                info = error_details_pb2.ErrorInfo()
                if detail.Unpack(info):
                    return str(info.reason)
    return ""
