"""The link that benchmarks put between services carries everything, late, and counts it."""

import asyncio
import time

import pytest

from benchmarks.link import HOST, Link, precise_loop

DATA = bytes(range(256)) * 1000


async def round_trip(seconds):
    """Send DATA through a link to a server that gives it back; return what came, the time and the link."""

    async def echo(reader, writer):
        writer.write(await reader.read(-1))
        writer.close()

    server = await asyncio.start_server(echo, HOST, 0)
    link = Link(f"{HOST}:{server.sockets[0].getsockname()[1]}", seconds)
    await link.start()
    serving = asyncio.create_task(link.serve())
    started = time.perf_counter()
    reader, writer = await asyncio.open_connection(HOST, link.port)
    writer.write(DATA)
    writer.write_eof()
    came = await reader.read(-1)
    took = time.perf_counter() - started
    writer.close()
    serving.cancel()
    server.close()
    return came, took, link


@pytest.mark.parametrize("seconds", [0.0, 0.05])
def test_bytes_arrive_in_order_and_no_earlier_than_they_may(seconds):
    with asyncio.Runner(loop_factory=precise_loop) as runner:
        came, took, link = runner.run(round_trip(seconds))
    assert came == DATA
    assert took >= seconds
    assert (link.towards, link.back) == (len(DATA), len(DATA))


def test_nobody_behind_the_link_is_a_closed_connection():
    async def ask():
        server = await asyncio.start_server(lambda *_: None, HOST, 0)
        port = server.sockets[0].getsockname()[1]
        server.close()
        await server.wait_closed()
        link = Link(f"{HOST}:{port}")
        await link.start()
        serving = asyncio.create_task(link.serve())
        reader, writer = await asyncio.open_connection(HOST, link.port)
        assert await reader.read(-1) == b""
        writer.close()
        serving.cancel()

    asyncio.run(ask())
