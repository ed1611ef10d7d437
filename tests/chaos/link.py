"""Connections of TCP on loopback that can be cut, refused, led elsewhere, and whose requests are seen."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import closing, suppress
from typing import Self

from tests.chaos.plan import Phase
from tests.chaos.underway import Spot, Watch

HOST = "127.0.0.1"
CHUNK = 2**16

See = Callable[["Chunk"], Awaitable[None]]


async def _deliver(chunk: "Chunk") -> None:
    await chunk.deliver()


class Chunk:
    """What arrived from a caller at once; a ``tests.chaos.underway.Underway``."""

    def __init__(self, connection: "Connection", data: bytes) -> None:
        """Hold it."""
        self.data = data
        self.answers = connection.answers
        self.answered = connection.answered
        self.over = asyncio.Event()
        self._connection = connection

    async def deliver(self) -> None:
        """Let it go on."""
        self.answered.clear()
        self._connection.far.write(self.data)
        await self._connection.far.drain()

    async def repeat(self) -> None:
        """Send the same on a connection of its own."""
        with suppress(OSError):
            reader, writer = await asyncio.open_connection(HOST, self._connection.link.to)
            with closing(writer):
                writer.write(self.data)
                await reader.read(CHUNK)

    def cut(self) -> None:
        """Cut the connection."""
        self._connection.cut()


class Connection:
    """One connection through a link."""

    def __init__(self, link: "Link", near: asyncio.StreamWriter, far: asyncio.StreamWriter) -> None:
        """Let answers pass."""
        self.link = link
        self.near = near
        self.far = far
        self.answers = asyncio.Event()
        self.answers.set()
        self.answered = asyncio.Event()

    def cut(self) -> None:
        """Break it on both sides, as a cable does: nothing more is said."""
        self.near.transport.abort()
        self.far.transport.abort()

    async def carry(self, near: asyncio.StreamReader, far: asyncio.StreamReader, see: See) -> None:
        """Carry until either side ends."""
        tasks = [asyncio.create_task(self._towards(near, see)), asyncio.create_task(self._back(far))]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _towards(self, near: asyncio.StreamReader, see: See) -> None:
        with suppress(ConnectionError):
            while data := await near.read(CHUNK):
                await see(Chunk(self, data))

    async def _back(self, far: asyncio.StreamReader) -> None:
        with suppress(ConnectionError):
            while data := await far.read(CHUNK):
                self.answered.set()
                await self.answers.wait()
                self.near.write(data)
                await self.near.drain()


class Link:
    """Listens on loopback and carries every connection to one port, which may change.

    Attributes:
        port: where it listens.
        to: port that new connections go to.
        refusing: whether new connections are broken at once.
    """

    def __init__(self, see: See = _deliver) -> None:
        """Start nothing yet; ``see`` is given all that callers send."""
        self.port = 0
        self.to = 0
        self.refusing = False
        self._see = see
        self._server: asyncio.Server | None = None
        self._connections: dict[asyncio.Task[None], Connection | None] = {}

    async def __aenter__(self) -> Self:
        """Listen on any free port."""
        self._server = await asyncio.start_server(self._accept, HOST, 0)
        self.port = int(self._server.sockets[0].getsockname()[1])
        return self

    async def __aexit__(self, *_: object) -> None:
        """Listen no more, and break what is connected."""
        if self._server:
            self._server.close()
        self.cut()
        tasks = list(self._connections)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)  # what was cut closes in the next turn of the loop

    def cut(self) -> None:
        """Break every connection."""
        for connection in self._connections.values():
            if connection is not None:
                connection.cut()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._connect(reader, writer))
        self._connections[task] = None
        task.add_done_callback(self._connections.pop)

    async def _connect(self, near: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer), suppress(OSError):  # where nobody listens, nobody is there for the caller either
            if self.refusing:
                writer.transport.abort()
                return
            far, far_writer = await asyncio.open_connection(HOST, self.to)
            with closing(far_writer):
                connection = Connection(self, writer, far_writer)
                task = asyncio.current_task()
                if task is not None:
                    self._connections[task] = connection
                await connection.carry(near, far, self._see)


def redis_link(watch: Watch, caller: str, sha: str) -> Link:
    """Return a link to Redis that shows the commits of a coordinator to a watch.

    Args:
        watch: sees them.
        caller: the coordinator.
        sha: of the script that commits, as Redis is asked for it.
    """
    spot = Spot(Phase.COMMITTING, caller, "redis")

    async def see(chunk: Chunk) -> None:
        if sha.encode() in chunk.data:
            await watch.passes(spot, chunk)
        else:
            await chunk.deliver()

    return Link(see)
