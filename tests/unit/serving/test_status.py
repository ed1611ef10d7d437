"""Errors as google.rpc.Status and back, and what is made of a peer that does not speak it."""

import grpc
import pytest
from google.protobuf.any_pb2 import Any
from google.rpc import error_details_pb2, status_pb2

from specdec import errors
from specdec.errors import InvalidParameter, PeerUnavailable, QueueFull, SpecdecError
from specdec.serving.status import LONGEST_RETRY_SECONDS, from_rpc_error, passed_on, to_status

ALL_ERRORS = [each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, SpecdecError)]


def rpc_error(code, details="", data=None):
    trailing = grpc.aio.Metadata() if data is None else grpc.aio.Metadata(("grpc-status-details-bin", data))
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), trailing, details)


def received(error):
    status = to_status(error)
    return rpc_error(status.code, status.details, dict(status.trailing_metadata)["grpc-status-details-bin"])


def details_of(error):
    status = status_pb2.Status.FromString(dict(to_status(error).trailing_metadata)["grpc-status-details-bin"])
    return {each.TypeName().rpartition(".")[2]: each for each in status.details}


@pytest.mark.parametrize("kind", ALL_ERRORS)
def test_each_class_has_its_own_reason_and_survives(kind):
    assert [each for each in ALL_ERRORS if each.reason == kind.reason] == [kind]
    sent = kind("why", field="prefix.tokens", retry_seconds=0.5, metadata={"counter": "3"})
    got = from_rpc_error(received(sent))
    assert type(got) is kind
    assert vars(got) == vars(sent) | {"from_peer": True}


def test_details_are_what_programs_read():
    details = details_of(InvalidParameter("top_k must not be negative", field="sampling_params.top_k"))
    info, request = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
    assert details["ErrorInfo"].Unpack(info)
    assert details["BadRequest"].Unpack(request)
    assert (info.reason, info.domain) == ("INVALID_PARAMETER", "specdec")
    assert request.field_violations[0].field == "sampling_params.top_k"
    assert "RetryInfo" not in details
    retry = error_details_pb2.RetryInfo()
    assert details_of(QueueFull("full", retry_seconds=1.5))["RetryInfo"].Unpack(retry)
    assert (retry.retry_delay.seconds, retry.retry_delay.nanos) == (1, 500_000_000)
    assert "BadRequest" not in details_of(QueueFull("full", retry_seconds=1.5))


def test_status_is_small():
    assert len(dict(to_status(InvalidParameter("x" * 200, field="y" * 60)).trailing_metadata).popitem()[1]) < 1024


@pytest.mark.parametrize("code", [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED])
def test_peer_that_is_away(code):
    got = from_rpc_error(rpc_error(code, "Connection refused"))
    assert type(got) is PeerUnavailable
    assert got.metadata == {"grpc_code": code.name}


@pytest.mark.parametrize("code", [grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.RESOURCE_EXHAUSTED])
def test_other_codes_without_details_are_no_known_error(code):
    got = from_rpc_error(rpc_error(code, "what"))
    assert type(got) is SpecdecError
    assert got.metadata == {"grpc_code": code.name}


def test_details_of_others_are_not_taken_for_ours():
    status = status_pb2.Status(code=8)
    status.details.add().Pack(error_details_pb2.ErrorInfo(reason="QUEUE_FULL", domain="mesh"))
    got = from_rpc_error(rpc_error(grpc.StatusCode.RESOURCE_EXHAUSTED, "", status.SerializeToString()))
    assert type(got) is SpecdecError


@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xff",
        status_pb2.Status(
            details=[Any(type_url="type.googleapis.com/google.rpc.ErrorInfo", value=b"\xff")]
        ).SerializeToString(),
    ],
)
def test_broken_details_leave_the_code(data):
    got = from_rpc_error(rpc_error(grpc.StatusCode.UNAVAILABLE, "away", data))
    assert type(got) is PeerUnavailable


@pytest.mark.parametrize("seconds", [2**62, -5])
def test_a_time_to_wait_that_is_none_is_bounded(seconds):
    status = status_pb2.Status(code=8)
    status.details.add().Pack(error_details_pb2.ErrorInfo(reason="QUEUE_FULL", domain="specdec"))
    retry = error_details_pb2.RetryInfo()
    retry.retry_delay.seconds = seconds
    status.details.add().Pack(retry)
    got = from_rpc_error(rpc_error(grpc.StatusCode.RESOURCE_EXHAUSTED, "", status.SerializeToString()))
    assert type(got) is QueueFull
    assert got.retry_seconds == (LONGEST_RETRY_SECONDS if seconds > 0 else 0)
    to_status(got)


@pytest.mark.parametrize("kind", ALL_ERRORS)
def test_nothing_of_a_peers_words_is_passed_on(kind):
    sent = kind("inside", field="inside.tokens", retry_seconds=0.5, metadata={"inside": "inside"})
    told = passed_on(from_rpc_error(received(sent)))
    if told is not None:
        assert (type(told), told.field, told.metadata, told.retry_seconds) == (kind, "", {}, 0.5)
        assert "inside" not in told.message


@pytest.mark.parametrize(
    ("field", "passed"),
    [("sampling_params.top_k", True), ("sampling_params.inside", False), ("prefix.tokens", False), ("", False)],
)
def test_a_refused_parameter_is_passed_on_by_its_name_alone(field, passed):
    told = passed_on(from_rpc_error(received(InvalidParameter("inside", field=field))))
    assert (told is not None) == passed
    if told is not None:
        assert (type(told), told.field) == (InvalidParameter, field)
        assert "inside" not in told.message


def test_what_another_than_our_servers_says_is_not_passed_on():
    got = from_rpc_error(rpc_error(grpc.StatusCode.UNKNOWN, "Exception calling application: inside"))
    assert passed_on(got) is None
