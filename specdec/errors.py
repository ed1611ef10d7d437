"""Every error that crosses a service boundary, each with its gRPC code and its reason.

Nothing here knows gRPC: ``specdec.serving.status`` turns these into a status with ``google.rpc`` details and back. The
reason is stable and what a caller decides by; the message is for people and never holds prompt text.
"""

from collections.abc import Mapping


class SpecdecError(Exception):
    """Base of the errors below.

    Attributes:
        code: name of the gRPC status code.
        reason: UPPER_SNAKE_CASE, unique to the class.
        field: path of the request field at fault, or empty.
        retry_seconds: when to try again, or 0 where trying again does not help.
        metadata: what the message names, for programs.
        from_peer: whether another service has raised it, so that the words are not ours.
    """

    code = "INTERNAL"
    reason = "INTERNAL"

    def __init__(
        self,
        message: str,
        *,
        field: str = "",
        retry_seconds: float = 0.0,
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        """Say what went wrong, for the developer who reads it."""
        super().__init__(message)
        self.message = message
        self.field = field
        self.retry_seconds = retry_seconds
        self.metadata = dict(metadata or {})
        self.from_peer = False


class InvalidParameter(SpecdecError):
    """A request field is missing, malformed or out of range."""

    code = "INVALID_ARGUMENT"
    reason = "INVALID_PARAMETER"


class InvalidProposal(SpecdecError):
    """A proposal was not drawn as it says."""

    code = "INVALID_ARGUMENT"
    reason = "INVALID_PROPOSAL"


class Unauthenticated(SpecdecError):
    """The call bears no valid token."""

    code = "UNAUTHENTICATED"
    reason = "UNAUTHENTICATED"


class SessionNotFound(SpecdecError):
    """No such session, or not the caller's."""

    code = "NOT_FOUND"
    reason = "SESSION_NOT_FOUND"


class SessionBusy(SpecdecError):
    """The session is running elsewhere under a live lease."""

    code = "ABORTED"
    reason = "SESSION_BUSY"


class LengthMismatch(SpecdecError):
    """The session does not hold the committed length that the caller expects."""

    code = "ABORTED"
    reason = "LENGTH_MISMATCH"


class StaleFence(SpecdecError):
    """A higher fence has been seen for the session; metadata names its counter and owner."""

    code = "FAILED_PRECONDITION"
    reason = "STALE_FENCE"


class FingerprintMismatch(SpecdecError):
    """Two parties do not run the same model or vocabulary."""

    code = "FAILED_PRECONDITION"
    reason = "FINGERPRINT_MISMATCH"


class PrefixMissing(SpecdecError):
    """The server does not hold the tokens a call stands on; ask again with start = 0."""

    code = "FAILED_PRECONDITION"
    reason = "PREFIX_MISSING"


class QueueFull(SpecdecError):
    """Too much work is waiting."""

    code = "RESOURCE_EXHAUSTED"
    reason = "QUEUE_FULL"


class CacheFull(SpecdecError):
    """No room in the KV cache that could be taken from a finished session."""

    code = "RESOURCE_EXHAUSTED"
    reason = "CACHE_FULL"


class ClientLimit(SpecdecError):
    """The client asks for more than one client may."""

    code = "RESOURCE_EXHAUSTED"
    reason = "CLIENT_LIMIT"


class NotReady(SpecdecError):
    """The server is loading its model or draining."""

    code = "UNAVAILABLE"
    reason = "NOT_READY"


class PeerUnavailable(SpecdecError):
    """A model server or Redis is away."""

    code = "UNAVAILABLE"
    reason = "PEER_UNAVAILABLE"


class DeadlineExceeded(SpecdecError):
    """The caller's time has run out."""

    code = "DEADLINE_EXCEEDED"
    reason = "DEADLINE_EXCEEDED"


class DataLost(SpecdecError):
    """The client has tokens that the store does not."""

    code = "DATA_LOSS"
    reason = "DATA_LOST"


class NumericalFailure(SpecdecError):
    """The model gave rows that are not finite."""

    code = "INTERNAL"
    reason = "NUMERICAL_FAILURE"
