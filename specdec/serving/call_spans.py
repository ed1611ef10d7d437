"""The span of a call, on the caller's side and on the server's, by OpenTelemetry's conventions for gRPC.

Written by hand because opentelemetry-instrumentation-grpc 0.66b2, as tried, leaves uncaught errors and deadlines
without a status, loses the client span of a cancelled stream, uses the attribute names from before the stable
convention, and globally instruments the exporter's own channel too.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, StatusCode

from specdec.serving import names
from specdec.serving.telemetry import tracer

# At fault is the server, by OpenTelemetry's convention for gRPC; other codes are no error of its span.
SERVER_FAULTS = frozenset({"UNKNOWN", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS"})

_SPAN_NAMES = {
    "specdec.v1.GenerationService/Generate": names.SPAN_GENERATE,
    # Each message of a stream is a call.
    "specdec.v1.DraftService/ProposeStream": "Propose",
    "specdec.v1.TargetService/VerifyStream": "Verify",
}


def server_span(path: str, parent: Context) -> AbstractContextManager[Span]:
    """Start the span of a call that came as the current one; ``finish_server`` alone decides its status."""
    return _span(path, SpanKind.SERVER, parent, {})


def client_span(path: str, peer: Mapping[str, str | int]) -> AbstractContextManager[Span]:
    """Start the span of a call to another service as the current one; ``finish`` alone decides its status."""
    return _span(path, SpanKind.CLIENT, None, peer)


def peer_attributes(address: str) -> dict[str, str | int]:
    """Return what a client's span says of the server at an address, host:port."""
    host, _, port = address.rpartition("/")[2].rpartition(":")
    return {names.SERVER_ADDRESS: host} | ({names.SERVER_PORT: int(port)} if port.isdigit() else {})


def finish(span: Span, code: str, *, is_error: bool = False, reason: str = "") -> None:
    """Write onto a span how its call ended."""
    span.set_attribute(names.RPC_STATUS, code)
    if reason:
        span.set_attribute(names.ERROR_REASON, reason)
    if is_error:
        span.set_attribute(names.ERROR_TYPE, code)
        span.set_status(StatusCode.ERROR)


def finish_server(span: Span, code: str, reason: str = "") -> None:
    """Write onto a server's span how its call ended."""
    finish(span, code, is_error=code in SERVER_FAULTS, reason=reason)


def _span(
    path: str, kind: SpanKind, parent: Context | None, peer: Mapping[str, str | int]
) -> AbstractContextManager[Span]:
    attributes = {names.RPC_SYSTEM: "grpc", names.RPC_METHOD: path, **peer}
    span = tracer().start_span(_SPAN_NAMES.get(path, path.rpartition("/")[2]), parent, kind, attributes)
    return trace.use_span(span, end_on_exit=True, record_exception=False, set_status_on_exception=False)
