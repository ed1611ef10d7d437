"""Bytes are read as a message or as the error to answer, and a message that is refused is not kept."""

import weakref

from specdec.errors import InvalidParameter
from specdec.serving.reading import readable_or_error
from specdec.v1 import common_pb2


class Message:
    """What some bytes have become."""


def test_a_message_that_is_refused_as_it_is_read_is_gone_while_its_error_is_answered():
    kept = []

    def deserialize(_):
        message = Message()
        kept.append(weakref.ref(message))
        return message

    def refuse(_):
        raise InvalidParameter("too many", field="messages")

    error = readable_or_error(deserialize, refuse)(b"")
    assert isinstance(error, InvalidParameter)
    assert error.field == "messages"
    assert kept[0]() is None


def test_a_message_is_read_and_what_is_none_is_an_error():
    read = readable_or_error(common_pb2.ReleaseRequest.FromString)
    assert read(common_pb2.ReleaseRequest(session_id="s").SerializeToString()).session_id == "s"
    assert isinstance(read(b"\xff"), InvalidParameter)
