"""Bytes of a request become its message, or the error to answer; grpc.aio would answer UNKNOWN, with a traceback."""

from collections.abc import Callable
from typing import Any

from google.protobuf.message import DecodeError

from specdec.errors import InvalidParameter


def anything_goes(request: Any) -> None:
    """Refuse nothing."""


def readable_or_error(
    deserialize: Callable[[bytes], Any], check: Callable[[Any], None] = anything_goes
) -> Callable[[bytes], Any]:
    """Let bytes that are no message be read as an InvalidParameter, for the handler to raise.

    Args:
        deserialize: makes a message of bytes.
        check: raises InvalidParameter for a message not to keep: many times its bytes, it is gone before the next is
            read. What a handler refuses stays until its caller has been told.
    """

    def read(data: bytes) -> Any:
        try:
            message = deserialize(data)
            check(message)
        except DecodeError:
            return InvalidParameter("the request is not a message of the type that this method takes")
        except InvalidParameter as error:
            return error.with_traceback(None)  # whose frames hold the message
        return message

    return read
