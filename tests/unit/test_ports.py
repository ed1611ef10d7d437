"""A held port is there for servers that name it, one after the other, and for nobody else."""

import socket
from contextlib import closing

import pytest

from tests.ports import HOST


def test_servers_that_name_the_port_follow_one_another_and_refuse_callers_between(held_port):
    for _ in range(2):
        with socket.create_server((HOST, held_port)) as server, closing(socket.create_connection((HOST, held_port))):
            connection, _ = server.accept()
            connection.close()  # the server first, which leaves the port in use for a while
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((HOST, held_port))


def test_nobody_else_gets_it(held_port):
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind((HOST, held_port))
