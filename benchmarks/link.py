"""A link of TCP on loopback that takes time: ``python -m benchmarks.link HOST:PORT --round-trip-ms 10``.

Every byte arrives half the round trip after it was sent, in both directions, however many are under way. It counts
what it carries, so that with no delay at all it is a meter.
"""

import argparse
import asyncio
import json
import selectors
import sys
from collections.abc import Callable
from contextlib import closing, suppress
from typing import Self

HOST = "127.0.0.1"
CHUNK = 2**16


class Link:
    """Listens on loopback in an ``async with`` block, and carries every connection to one address.

    Attributes:
        port: where it listens.
        towards: bytes carried to the address so far.
        back: bytes carried from it so far.
    """

    def __init__(self, to: str, round_trip_seconds: float = 0.0) -> None:
        """Start nothing yet.

        Args:
            to: host:port.
            round_trip_seconds: added to what a round trip takes.
        """
        self.port = 0
        self.towards = 0
        self.back = 0
        self._to = to
        self._one_way = round_trip_seconds / 2
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        """Listen on any free port."""
        self._server = await asyncio.start_server(self._connected, HOST, 0)
        self.port = int(self._server.sockets[0].getsockname()[1])
        return self

    async def __aexit__(self, *_: object) -> None:
        """Listen no more, and break what is connected."""
        if self._server:
            self._server.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, _, port = self._to.rpartition(":")
        connection = asyncio.create_task(self._connect(host, int(port), reader, writer))
        self._connections.add(connection)
        connection.add_done_callback(self._connections.discard)

    async def _connect(self, host: str, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer), suppress(OSError):  # where nobody listens, nobody is there for the caller either
            far_reader, far_writer = await asyncio.open_connection(host, port)
            with closing(far_writer):
                await asyncio.gather(
                    self._carry(reader, far_writer, self._count_towards),
                    self._carry(far_reader, writer, self._count_back),
                )

    def _count_towards(self, size: int) -> None:
        self.towards += size

    def _count_back(self, size: int) -> None:
        self.back += size

    async def _carry(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, count: Callable[[int], None]
    ) -> None:
        loop = asyncio.get_running_loop()
        with suppress(ConnectionError):  # a side that is gone ends the other, like one that says no more
            while chunk := await reader.read(CHUNK):
                count(len(chunk))
                if self._one_way:
                    loop.call_at(loop.time() + self._one_way, writer.write, chunk)
                else:
                    writer.write(chunk)
        await asyncio.sleep(self._one_way)
        with suppress(OSError):
            writer.write_eof()


def precise_loop() -> asyncio.AbstractEventLoop:
    """Return an event loop whose timers are exact to microseconds: epoll, the usual one, waits whole milliseconds."""
    return asyncio.SelectorEventLoop(selectors.SelectSelector())


async def main(arguments: list[str]) -> None:
    """Carry until killed, after saying where as the services do."""
    parser = argparse.ArgumentParser("python -m benchmarks.link", description=__doc__)
    parser.add_argument("to", help="host:port")
    parser.add_argument("--round-trip-ms", type=float, default=0.0, help="added to a round trip (%(default)s)")
    options = parser.parse_args(arguments)
    async with Link(options.to, options.round_trip_ms / 1000) as link:
        sys.stdout.write(json.dumps({"event": "serving", "port": link.port}) + "\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=precise_loop) as runner:
        runner.run(main(sys.argv[1:]))
