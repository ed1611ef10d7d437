"""Bytes of a request become its message, or the error to answer; grpc.aio would answer UNKNOWN, with a traceback."""

from collections.abc import Callable
from typing import Any

from google.protobuf.message import DecodeError

from specdec.errors import InvalidParameter


def readable_or_error(deserialize: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    """Let bytes that are no message be read as an InvalidParameter, for the handler to raise."""

    def read(data: bytes) -> Any:
        try:
            return deserialize(data)
        except DecodeError:
            return InvalidParameter("the request is not a message of the type that this method takes")

    return read
