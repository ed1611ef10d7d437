"""Links without delay that count the bytes between processes, on an event loop in a thread of its own."""

import asyncio
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import AsyncExitStack, contextmanager
from threading import Thread

from benchmarks.link import HOST, Link

START_SECONDS = 10.0


@contextmanager
def metered(addresses: Mapping[str, str]) -> Iterator[dict[str, Link]]:
    """Put a link before each address.

    Args:
        addresses: host:port by name.

    Returns:
        The links by name; read ``towards`` and ``back`` whenever you like.
    """
    links = {name: Link(address) for name, address in addresses.items()}
    started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Future()
    thread = Thread(target=lambda: asyncio.run(_carry(links, started)))
    thread.start()
    loop, over = started.result(START_SECONDS)
    try:
        yield links
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join()


async def _carry(links: Mapping[str, Link], started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]]) -> None:
    over = asyncio.Event()
    async with AsyncExitStack() as stack:
        for link in links.values():
            await stack.enter_async_context(link)
        started.set_result((asyncio.get_running_loop(), over))
        await over.wait()


def address(link: Link) -> str:
    """Return where a link listens."""
    return f"{HOST}:{link.port}"
