"""The link that benchmarks put between services carries everything, late, and counts it."""

import asyncio
import socket
import time

import pytest

from benchmarks.link import HOST, Link, precise_loop
from benchmarks.meter import address, metered

DATA = bytes(range(256)) * 1000


async def echo(reader, writer):
    """Give back what came, once it has ended."""
    writer.write(await reader.read(-1))
    writer.close()


async def sent(port):
    """Send DATA and return what comes back, and the seconds it took."""
    started = time.perf_counter()
    reader, writer = await asyncio.open_connection(HOST, port)
    writer.write(DATA)
    writer.write_eof()
    came = await reader.read(-1)
    writer.close()
    return came, time.perf_counter() - started


@pytest.mark.parametrize("seconds", [0.0, 0.05])
def test_bytes_arrive_in_order_and_no_earlier_than_they_may(seconds):
    async def round_trip():
        server = await asyncio.start_server(echo, HOST, 0)
        async with server, Link(f"{HOST}:{server.sockets[0].getsockname()[1]}", seconds) as link:
            return *await sent(link.port), link

    with asyncio.Runner(loop_factory=precise_loop) as runner:
        came, took, link = runner.run(round_trip())
    assert came == DATA
    assert took >= seconds
    assert (link.towards, link.back) == (len(DATA), len(DATA))


async def test_nobody_behind_the_link_is_a_closed_connection():
    with socket.socket() as free:
        free.bind((HOST, 0))  # and does not listen
        async with Link(f"{HOST}:{free.getsockname()[1]}") as link:
            reader, writer = await asyncio.open_connection(HOST, link.port)
            assert await reader.read(-1) == b""
            writer.close()


async def test_the_end_of_a_link_breaks_its_connections():
    async def greet(reader, writer):
        writer.write(b"x")
        await reader.read(-1)
        writer.close()

    async with await asyncio.start_server(greet, HOST, 0) as server:
        async with Link(f"{HOST}:{server.sockets[0].getsockname()[1]}") as link:
            reader, writer = await asyncio.open_connection(HOST, link.port)
            assert await reader.read(1) == b"x"
        assert await reader.read(-1) == b""
        writer.close()


async def test_a_meter_counts_what_passes_from_its_own_thread():
    async with await asyncio.start_server(echo, HOST, 0) as server:
        with metered({"echo": f"{HOST}:{server.sockets[0].getsockname()[1]}"}) as links:
            assert address(links["echo"]).startswith(HOST)
            came, _ = await sent(links["echo"].port)
    assert came == DATA
    assert (links["echo"].towards, links["echo"].back) == (len(DATA), len(DATA))
