"""What the span of a Generate call, and a line of the log, say of its request and its answer: never a word of them.

The span's attributes are those of OpenTelemetry's conventions for models.
"""

import time

import structlog
from opentelemetry import trace

from coordinator.requests import Served
from coordinator.session import Session
from specdec.serving import names
from specdec.v1 import generation_pb2

logger: structlog.stdlib.BoundLogger = structlog.stdlib.get_logger(__name__)


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


def describe_usage(session: Session, started: float) -> None:
    """Write onto the current span what the answer has come to, and into the log where the span is found.

    Args:
        session: the answer's; without a finish reason when it was broken off.
        started: ``time.monotonic()`` when the request came.
    """
    usage, finish = session.usage, session.finish_reason.name.lower() if session.finish_reason else ""
    logger.info(
        "answer ended",
        session=session.session_id,
        tokens=usage.completion_tokens,
        rounds=usage.rounds,
        finish_reason=finish,
        seconds=round(time.monotonic() - started, 3),
    )
    trace.get_current_span().set_attributes(
        {
            names.FINISH_REASONS: [finish] if finish else [],
            names.INPUT_TOKENS: usage.prompt_tokens,
            names.OUTPUT_TOKENS: usage.completion_tokens,
            names.ROUNDS: usage.rounds,
            names.SPEC_ROUNDS: usage.spec_rounds,
            names.SPEC_DRAFT_TOKENS: usage.spec_draft_tokens,
            names.SPEC_ACCEPTED_TOKENS: usage.spec_accepted_tokens,
        }
    )
