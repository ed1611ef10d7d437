"""One answer as a client of the services sees it: every round with its counts, its times and when it arrived."""

import time
from dataclasses import dataclass
from typing import Any

from google.protobuf.duration_pb2 import Duration

from specdec.v1 import common_pb2, generation_pb2

CALL_SECONDS = 3600.0


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
        draft_seconds: forward passes and draws inside the draft server.
        target_seconds: forward pass and verification inside the target server.
        fell_back: there should have been draft tokens, and there were none.
    """

    gamma: int
    accept_index: int
    emitted: int
    arrived: float
    propose_seconds: float = 0.0
    verify_seconds: float = 0.0
    draft_seconds: float = 0.0
    target_seconds: float = 0.0
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
        return sum(one.draft_seconds + one.target_seconds for one in self.decoding)

    @property
    def seconds(self) -> float:
        """From the request to the last tokens."""
        return self.rounds[-1].arrived


def record(stub: Any, request: generation_pb2.GenerateRequest) -> Recording:
    """Ask for an answer in a session of its own, follow it to its end and delete the session.

    Args:
        stub: a GenerationServiceStub.
        request: without session_id.

    Raises:
        grpc.RpcError: a call failed.
    """
    session_id, tokens, rounds = "", [], []
    started = time.perf_counter()
    for event in stub.Generate(request, timeout=CALL_SECONDS):
        rounds.append(_round(event, time.perf_counter() - started))
        tokens.extend(event.token_ids)
        session_id = event.session_id
    session = stub.GetSession(generation_pb2.GetSessionRequest(session_id=session_id), timeout=CALL_SECONDS)
    stub.DeleteSession(generation_pb2.DeleteSessionRequest(session_id=session_id), timeout=CALL_SECONDS)
    return Recording(tuple(session.token_ids[: session.prompt_length]), tuple(tokens), tuple(rounds))


def _round(event: generation_pb2.GenerateResponse, arrived: float) -> Round:
    told = event.round
    return Round(
        gamma=told.gamma,
        accept_index=told.accept_index,
        emitted=len(event.token_ids),
        arrived=arrived,
        propose_seconds=_seconds(told.propose_time),
        verify_seconds=_seconds(told.verify_time),
        draft_seconds=_inside(told.draft_timings),
        target_seconds=_inside(told.target_timings),
        fell_back=told.fallback != generation_pb2.FALLBACK_REASON_UNSPECIFIED,
    )


def _inside(timings: common_pb2.ServerTimings) -> float:
    """Return what a server's model took; 0 where it was not called."""
    return _seconds(timings.forward) + _seconds(timings.sampling)


def _seconds(duration: Duration) -> float:
    return duration.seconds + duration.nanos / 1e9
