"""Errors to a gRPC status with ``google.rpc`` details, and back.

The server side calls ``to_status``; a caller of another service turns what it caught into the same class again.
"""

from dataclasses import fields

import grpc
from google.protobuf.message import DecodeError
from google.rpc import code_pb2, error_details_pb2, status_pb2
from grpc_status import rpc_status

from specdec import errors
from specdec.errors import InvalidParameter, PeerUnavailable, SpecdecError
from specdec.parameters import SamplingParams
from specdec.wire import duration

DOMAIN = "specdec"
LONGEST_RETRY_SECONDS = 3600.0

_DETAILS_KEY = "grpc-status-details-bin"
_AWAY = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
# What our caller can do something about, or must know, though a peer of ours has said it.
_PASSED_ON: dict[type[SpecdecError], str] = {
    errors.QueueFull: "too much work is waiting for the model",
    errors.CacheFull: "there is no room for the session beside the model",
    errors.PeerUnavailable: "a model server is away",
    errors.NotReady: "a model server is away",
    errors.StaleFence: "the session has been taken over",
    errors.NumericalFailure: "the model gave numbers that are not finite",
}
_PARAMETERS = {f"sampling_params.{each.name}" for each in fields(SamplingParams)}
_BY_REASON: dict[str, type[SpecdecError]] = {
    each.reason: each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, SpecdecError)
}


def to_status(error: SpecdecError) -> grpc.Status:
    """Write an error as ErrorInfo, with BadRequest where a field is at fault and RetryInfo where trying again helps."""
    status = status_pb2.Status(code=code_pb2.Code.Value(error.code), message=error.message)
    info = error_details_pb2.ErrorInfo(reason=error.reason, domain=DOMAIN, metadata=error.metadata)
    status.details.add().Pack(info)
    if error.field:
        violation = error_details_pb2.BadRequest.FieldViolation(field=error.field, description=error.message)
        status.details.add().Pack(error_details_pb2.BadRequest(field_violations=[violation]))
    if error.retry_seconds > 0:
        status.details.add().Pack(error_details_pb2.RetryInfo(retry_delay=duration(error.retry_seconds)))
    return rpc_status.to_status(status)


def from_rpc_error(error: grpc.aio.AioRpcError) -> SpecdecError:
    """Read the error a peer answered with.

    Returns:
        The class that the peer raised, by its reason. Without one: PeerUnavailable where the peer is away or did not
        answer in time, else a SpecdecError whose metadata names the ``grpc_code``.
    """
    known = _from_details(error) or _from_code(error)
    known.from_peer = True
    return known


def passed_on(error: SpecdecError) -> SpecdecError | None:
    """Return what our own caller is told of an error that a peer raised: what it can act on, and in our words.

    A peer's words are for the log: they may name what is inside, and come from a library or a proxy.

    Returns:
        An error of the same class without words, field or metadata of the peer's, or None: for the caller it is an
        internal error. A sampling parameter is passed on by name, since both sides know it by the same one.
    """
    if type(error) is InvalidParameter and error.field in _PARAMETERS:
        return InvalidParameter(f"{error.field} cannot be honoured by the model", field=error.field)
    words = _PASSED_ON.get(type(error))
    return type(error)(words, retry_seconds=error.retry_seconds) if words else None


def _from_code(error: grpc.aio.AioRpcError) -> SpecdecError:
    code, message = error.code(), error.details() or ""
    if code in _AWAY:
        return PeerUnavailable(f"peer is away: {message}", metadata={"grpc_code": code.name})
    return SpecdecError(f"peer answered {code.name}: {message}", metadata={"grpc_code": code.name})


def _from_details(error: grpc.aio.AioRpcError) -> SpecdecError | None:
    data = dict(error.trailing_metadata() or ()).get(_DETAILS_KEY, b"")
    info, request, retry = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest(), error_details_pb2.RetryInfo()
    try:
        for detail in status_pb2.Status.FromString(data).details:
            for message in (info, request, retry):
                detail.Unpack(message)
    except DecodeError:  # another's details: its code and message still say what happened
        return None
    if info.domain != DOMAIN or info.reason not in _BY_REASON:
        return None
    return _BY_REASON[info.reason](
        error.details() or "",
        field=request.field_violations[0].field if request.field_violations else "",
        retry_seconds=min(max(0.0, retry.retry_delay.seconds + retry.retry_delay.nanos / 1e9), LONGEST_RETRY_SECONDS),
        metadata=info.metadata,
    )
