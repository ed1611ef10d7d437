"""What the span of a Generate call says of its request and its answer, by OpenTelemetry's conventions for models."""

from opentelemetry import trace

from coordinator.requests import Served
from coordinator.session import Session
from specdec.serving import names
from specdec.v1 import generation_pb2


def describe_request(request: generation_pb2.GenerateRequest, session: Session, served: Served) -> None:
    """Write onto the current span what is asked for, without a word of it."""
    trace.get_current_span().set_attributes(
        {
            names.OPERATION: "chat" if request.messages else "text_completion",
            names.PROVIDER: "specdec",
            names.MODEL: served.model.name,
            names.SESSION: session.session_id,
            names.VERIFICATION: session.speculation.verification.name,
        }
    )


def describe_usage(session: Session) -> None:
    """Write onto the current span what the answer has come to."""
    usage = session.usage
    trace.get_current_span().set_attributes(
        {
            names.FINISH_REASONS: [session.finish_reason.name.lower()] if session.finish_reason else [],
            names.INPUT_TOKENS: usage.prompt_tokens,
            names.OUTPUT_TOKENS: usage.completion_tokens,
            names.ROUNDS: usage.rounds,
            names.SPEC_ROUNDS: usage.spec_rounds,
            names.SPEC_DRAFT_TOKENS: usage.spec_draft_tokens,
            names.SPEC_ACCEPTED_TOKENS: usage.spec_accepted_tokens,
        }
    )
