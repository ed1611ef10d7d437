"""Calls of whoever sends anything: raw bytes to a method, and what every answer to them must be."""

import re
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from specdec.errors import SpecdecError
from specdec.serving.status import from_rpc_error
from specdec.v1 import common_pb2, draft_pb2, generation_pb2, target_pb2
from tests.hostile_messages import SECRET, is_field

SECONDS = 60
# What a caller can bring about. Neither INTERNAL nor UNKNOWN, and nothing that says that a service is away.
CALLERS_FAULTS = {
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.DATA_LOSS,
}
INTERNALS = re.compile(
    r"Traceback|\.py\b|<class|<object|\bat 0x|\w(?:Error|Exception)\b|specdec:|/\w+/|\bNone\b|\bdict\b|\btuple\b"
    r"|[Rr]edis|[Tt]orch|g[Rr][Pp][Cc]|[Pp]rotobuf|asyncio|Servicer|_pb2"
)


@dataclass(frozen=True, slots=True)
class Method:
    """A method of the contract.

    Attributes:
        path: as it is called.
        request: class of its requests.
        response: class of its responses.
        streams: "" for neither, "out" for its responses, "both" for its requests too.
    """

    path: str
    request: Any
    response: Any
    streams: str

    def __str__(self):
        return self.path.rpartition(".")[2]

    async def send(self, channel, payload):
        """Call it with some bytes, and return the messages that come.

        Raises:
            grpc.aio.AioRpcError: the call has failed.
        """
        if self.streams == "both":
            call = channel.stream_stream(self.path)(iter([payload]), timeout=SECONDS)
        elif self.streams == "out":
            call = channel.unary_stream(self.path)(payload, timeout=SECONDS)
        else:
            return [self.response.FromString(await channel.unary_unary(self.path)(payload, timeout=SECONDS))]
        return [self.response.FromString(data) async for data in call]

    def parses(self, payload):
        """Say whether bytes are a request at all."""
        try:
            self.request.FromString(payload)
        except DecodeError:
            return False
        return True

    def without_session(self, message, payload):
        """Take the name that the caller has given a session, and may be told again, out of an error's message."""
        if not self.parses(payload):
            return message
        request = self.request.FromString(payload)
        session_id = getattr(getattr(request, "prefix", request), "session_id", "")
        return message.replace(f"ession {session_id}", "ession")

    async def outcome(self, channel, payload):
        """Call it, check what it says, and return the class of the error it answers with, None where it serves."""
        try:
            responses = await self.send(channel, payload)
        except grpc.aio.AioRpcError as error:
            return type(self.refusal(error, payload))
        assert self.parses(payload)
        assert responses or self.streams == "both"
        if self.response is generation_pb2.GenerateResponse:
            assert responses[-1].finish_reason
        return None

    def refusal(self, error, payload):
        """Check an error and return it as the class that was raised."""
        said = f"{error.code()} {error.details()} for {payload[:300]!r}"
        assert error.code() in CALLERS_FAULTS, said
        known = from_rpc_error(error)
        assert type(known) is not SpecdecError, said
        assert not INTERNALS.search(self.without_session(known.message, payload)), said
        assert SECRET not in f"{error.details()} {known.metadata}", said
        assert len(known.message) < 400, said
        if error.code() is grpc.StatusCode.INVALID_ARGUMENT:
            if self.parses(payload):
                assert is_field(self.request.DESCRIPTOR, known.field), f"{known.field!r}: {said}"
            else:
                assert known.field == "", said
        return known


def _methods():
    services = {
        "GenerationService": generation_pb2.DESCRIPTOR,
        "DraftService": draft_pb2.DESCRIPTOR,
        "TargetService": target_pb2.DESCRIPTOR,
    }
    modules = (common_pb2, generation_pb2, draft_pb2, target_pb2)
    classes = {name: getattr(module, name) for module in modules for name in module.DESCRIPTOR.message_types_by_name}
    found = {}
    for service, file in services.items():
        for each in file.services_by_name[service].methods:
            streams = "both" if each.client_streaming else "out" if each.server_streaming else ""
            types = classes[each.input_type.name], classes[each.output_type.name]
            found[f"{service}/{each.name}"] = Method(f"/specdec.v1.{service}/{each.name}", *types, streams)
    return found


METHODS = _methods()
"""All methods of the contract, by service and name."""
