"""What counts as held by a process."""

import os
import socket
import struct
from dataclasses import replace
from types import SimpleNamespace

from tests.chaos import levels


def test_a_connection_that_redis_has_reset_is_still_one_to_redis(monkeypatch):
    monkeypatch.setattr(levels, "gauges", lambda _: {})
    with socket.create_server(("127.0.0.1", 0)) as server:
        service = SimpleNamespace(pid=os.getpid(), metrics_port=0)
        world = SimpleNamespace(services={"it": service}, redis_ports=lambda: {server.getsockname()[1]})
        before = levels.level(world, "it")
        with socket.create_connection(server.getsockname()):
            there, _ = server.accept()
            there.shutdown(socket.SHUT_WR)
            there.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            there.close()
            assert levels.level(world, "it") == replace(before, to_redis=before.to_redis + 1)
