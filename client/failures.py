"""What can go wrong with a request, as one line for people and an exit code for programs."""

import grpc
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

INVALID, UNAVAILABLE, SESSION, SERVER, TIMEOUT = 1, 2, 3, 4, 5
_EXIT_CODES = {
    "INVALID_ARGUMENT": INVALID,
    "OUT_OF_RANGE": INVALID,
    "UNAUTHENTICATED": INVALID,
    "UNAVAILABLE": UNAVAILABLE,
    "RESOURCE_EXHAUSTED": UNAVAILABLE,
    "NOT_FOUND": SESSION,
    "ABORTED": SESSION,
    "FAILED_PRECONDITION": SESSION,
    "DEADLINE_EXCEEDED": TIMEOUT,
}
# Codes that gRPC itself, or a proxy, gives to a broken stream. The service names a reason with its own errors.
_TRANSPORT_CODES = ("CANCELLED", "UNKNOWN", "INTERNAL")


class RequestFailed(Exception):
    """A request ended with a status other than OK, or against the contract.

    Attributes:
        code: name of the gRPC status code.
        reason: reason of the service's ErrorInfo; empty when the transport failed.
        field: path of the request field at fault, or empty.
        retry_seconds: when the server wants to be asked again, or 0.
    """

    def __init__(
        self, code: str, message: str, *, reason: str = "", field: str = "", retry_seconds: float = 0.0
    ) -> None:
        """Say what went wrong, for the person at the terminal."""
        super().__init__(" ".join(message.split()))
        self.code = code
        self.reason = reason
        self.field = field
        self.retry_seconds = retry_seconds

    @property
    def lost(self) -> bool:
        """Whether asking again, perhaps elsewhere, can help."""
        if self.code == "RESOURCE_EXHAUSTED":
            return self.retry_seconds > 0
        return self.code == "UNAVAILABLE" or (self.code in _TRANSPORT_CODES and not self.reason)

    @property
    def exit_code(self) -> int:
        """Exit status of the command."""
        return _EXIT_CODES.get(self.code, SERVER)


def from_rpc_error(error: grpc.RpcError, address: str) -> RequestFailed:
    """Read code, message and ``google.rpc`` details of a failed call.

    Args:
        error: as grpc raised it; it is the call as well.
        address: where the call went, for the message.
    """
    code, text = error.code().name, error.details() or "no message"
    info, field, rules, retry_seconds = error_details_pb2.ErrorInfo(), "", [], 0.0
    for detail in _details(error):
        bad, retry = error_details_pb2.BadRequest(), error_details_pb2.RetryInfo()
        if detail.Unpack(bad) and bad.field_violations:
            field = bad.field_violations[0].field
            rules = [f"{violation.field}: {violation.description}" for violation in bad.field_violations]
        elif detail.Unpack(retry):
            retry_seconds = retry.retry_delay.ToTimedelta().total_seconds()
        else:
            detail.Unpack(info)
    message = _message(code, text, info.reason, address)
    if field and field not in message:
        message = "; ".join(rules)
    return RequestFailed(code, message, reason=info.reason, field=field, retry_seconds=retry_seconds)


def _details(error: grpc.RpcError) -> list:  # type: ignore[type-arg]
    try:
        status: status_pb2.Status | None = rpc_status.from_call(error)
    except (ValueError, DecodeError):  # details that contradict the status or do not parse: code and message remain
        return []
    return list(status.details) if status else []


def _message(code: str, text: str, reason: str, address: str) -> str:
    if code == "UNAVAILABLE" and not reason:
        return f"no coordinator answers at {address} ({text.rsplit(': ', 1)[-1]})"
    if code == "DEADLINE_EXCEEDED" and not reason:
        return f"no complete answer from {address} in time"
    if code == "UNIMPLEMENTED":
        return f"{address} does not speak specdec.v1 ({text})"
    return text
