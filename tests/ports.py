"""Ports for what a test stops and starts again on its port."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

HOST = "127.0.0.1"


@contextmanager
def holding_port() -> Iterator[int]:
    """Give a free port that nobody gets by chance before the end of the block, whether a server is up on it or not.

    The system gives a bound port neither to who asks for any nor to an outgoing connection. A server that names it may
    listen on it all the same: Linux lets sockets share a port of which no other one listens, if all of them have
    SO_REUSEADDR, as gRPC's, Redis' and Python's servers do.
    """
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind((HOST, 0))
        yield holder.getsockname()[1]


@pytest.fixture
def held_port() -> Iterator[int]:
    """A port for a server that is stopped and started again in a test."""
    with holding_port() as port:
        yield port
