"""Events and sessions as the messages of the public contract."""

from collections.abc import Iterable
from dataclasses import asdict

from coordinator.rounds import Ending, Event, Round
from coordinator.session import FinishReason, Session, TokenSource, Usage
from specdec.v1 import common_pb2, generation_pb2
from specdec.wire import duration, params_to_message, verification_to_message


def to_response(session: Session, event: Event) -> generation_pb2.GenerateResponse:
    """Write an event."""
    response = generation_pb2.GenerateResponse(
        session_id=session.session_id,
        index=event.index,
        token_ids=event.token_ids,
        text="".join(event.texts),
        sources=_sources(event.sources),
        logprobs=event.logprobs,
        token_texts=event.texts if event.token_ids else (),
    )
    if event.round is not None:
        response.round.CopyFrom(_round(event.round))
    if event.ending is not None:
        response.MergeFrom(_ending(event.ending))
    return response


def to_session_response(session: Session, text: str) -> generation_pb2.GetSessionResponse:
    """Write a session.

    Args:
        session: as the store holds it.
        text: the latest answer's, as Generate streamed it.
    """
    return generation_pb2.GetSessionResponse(
        session_id=session.session_id,
        state=f"SESSION_STATE_{session.state.name}",
        token_ids=session.tokens,
        prompt_length=session.prompt_length,
        text=text,
        sources=_sources(session.sources[session.prompt_length :]),
        sampling_params=params_to_message(session.params),
        speculation=generation_pb2.SpeculationParams(
            verification=verification_to_message(session.speculation.verification), gamma=session.speculation.gamma
        ),
        finish_reason=_finish_reason(session.finish_reason),
        matched_stop=session.matched_stop,
        usage=to_usage(session.usage),
    )


def to_usage(usage: Usage) -> generation_pb2.Usage:
    """Write the counts of an answer; the fields have the same names."""
    return generation_pb2.Usage(**asdict(usage))


def repeated_logprobs(token_ids: list[int]) -> list[common_pb2.TokenLogprobs]:
    """Write the log-probabilities of tokens that a resumed stream repeats: the tokens alone."""
    return [common_pb2.TokenLogprobs(token_id=token) for token in token_ids]


def _ending(ending: Ending) -> generation_pb2.GenerateResponse:
    return generation_pb2.GenerateResponse(
        finish_reason=_finish_reason(ending.reason),
        matched_stop=ending.matched_stop,
        usage=to_usage(ending.usage),
        session_length=ending.session_length,
    )


def _finish_reason(reason: FinishReason | None) -> str | None:
    return f"FINISH_REASON_{reason.name}" if reason else None


def _sources(sources: Iterable[int]) -> list[str]:
    return [f"TOKEN_SOURCE_{TokenSource(source).name}" for source in sources]


def _round(round_: Round) -> generation_pb2.Round:
    drafted, verdict = round_.drafted, round_.verdict
    return generation_pb2.Round(
        number=round_.number,
        base_length=round_.base_length,
        gamma=drafted.gamma,
        accept_index=verdict.accept_index,
        fallback=f"FALLBACK_REASON_{drafted.fallback.name}" if drafted.fallback else None,
        verify_time=duration(verdict.seconds),
        propose_time=duration(drafted.seconds) if drafted.seconds else None,
        draft_timings=drafted.timings,
        target_timings=verdict.timings,
    )
