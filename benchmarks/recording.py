"""One answer as a client of the services sees it: every round with its counts, its times and when it arrived."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from google.protobuf.duration_pb2 import Duration

from specdec.v1 import common_pb2, generation_pb2

CALL_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class Inside:
    """Where the time of a call went inside a model server, in seconds; all 0 without a call.

    Attributes:
        queue: from arrival to the first forward pass.
        forward: in forward passes.
        sampling: drawing tokens, or verifying them.
    """

    queue: float = 0.0
    forward: float = 0.0
    sampling: float = 0.0

    @property
    def model(self) -> float:
        """What the model takes however it is served: its passes and what becomes of their rows."""
        return self.forward + self.sampling


@dataclass(frozen=True, slots=True)
class Round:
    """One propose-verify cycle; all times in seconds.

    Attributes:
        gamma: draft tokens verified, which may be fewer than were asked for.
        accept_index: draft tokens kept, before any stop cut the round.
        emitted: tokens that reached the client, next_token included.
        arrived: when they did, since the request.
        propose_seconds: the Propose call as the coordinator saw it, 0 without one.
        verify_seconds: the Verify call as the coordinator saw it.
        draft: inside the draft server.
        target: inside the target server.
        fell_back: there should have been draft tokens, and there were none.
    """

    gamma: int
    accept_index: int
    emitted: int
    arrived: float
    propose_seconds: float = 0.0
    verify_seconds: float = 0.0
    draft: Inside = Inside()
    target: Inside = Inside()
    fell_back: bool = False


@dataclass(frozen=True, slots=True)
class Recording:
    """An answer.

    Attributes:
        prompt_ids: committed tokens before it, the chat template's included.
        token_ids: the answer's.
        rounds: at least one, in order. The first one feeds the prompt, so the costs and the pace of decoding are taken
            from the rounds after it.
    """

    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    rounds: tuple[Round, ...]

    @property
    def decoding(self) -> tuple[Round, ...]:
        """The rounds after the first one."""
        return self.rounds[1:]

    @property
    def decoded_tokens(self) -> int:
        """Tokens of the rounds after the first one."""
        return sum(one.emitted for one in self.decoding)

    @property
    def decoding_seconds(self) -> float:
        """From the arrival of the first tokens to that of the last."""
        return self.rounds[-1].arrived - self.rounds[0].arrived

    @property
    def model_seconds(self) -> float:
        """What the models alone took for the rounds after the first one."""
        return sum(one.draft.model + one.target.model for one in self.decoding)

    @property
    def seconds(self) -> float:
        """From the request to the last tokens."""
        return self.rounds[-1].arrived


class Recorder:
    """Takes the events of one answer as they come."""

    def __init__(self) -> None:
        """Start the clock: the request is sent now."""
        self.session_id = ""
        self._started = time.perf_counter()
        self._tokens: list[int] = []
        self._rounds: list[Round] = []

    def take(self, event: generation_pb2.GenerateResponse) -> None:
        """Note an event that arrives now."""
        self._rounds.append(_round(event, time.perf_counter() - self._started))
        self._tokens.extend(event.token_ids)
        self.session_id = event.session_id

    def recording(self, prompt_ids: Sequence[int] = ()) -> Recording:
        """Return what has come so far."""
        return Recording(tuple(prompt_ids), tuple(self._tokens), tuple(self._rounds))


def record(stub: Any, request: generation_pb2.GenerateRequest) -> Recording:
    """Ask for an answer in a session of its own, follow it to its end and delete the session.

    Args:
        stub: a GenerationServiceStub.
        request: without session_id.

    Raises:
        grpc.RpcError: a call failed.
    """
    recorder = Recorder()
    for event in stub.Generate(request, timeout=CALL_SECONDS):
        recorder.take(event)
    session_id = recorder.session_id
    session = stub.GetSession(generation_pb2.GetSessionRequest(session_id=session_id), timeout=CALL_SECONDS)
    stub.DeleteSession(generation_pb2.DeleteSessionRequest(session_id=session_id), timeout=CALL_SECONDS)
    return recorder.recording(session.token_ids[: session.prompt_length])


def _round(event: generation_pb2.GenerateResponse, arrived: float) -> Round:
    told = event.round
    return Round(
        gamma=told.gamma,
        accept_index=told.accept_index,
        emitted=len(event.token_ids),
        arrived=arrived,
        propose_seconds=_seconds(told.propose_time),
        verify_seconds=_seconds(told.verify_time),
        draft=_inside(told.draft_timings),
        target=_inside(told.target_timings),
        fell_back=told.fallback != generation_pb2.FALLBACK_REASON_UNSPECIFIED,
    )


def _inside(timings: common_pb2.ServerTimings) -> Inside:
    return Inside(_seconds(timings.queue), _seconds(timings.forward), _seconds(timings.sampling))


def _seconds(duration: Duration) -> float:
    return duration.seconds + duration.nanos / 1e9
