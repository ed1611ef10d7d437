"""How work overlaps and how it is ended."""

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

Result = TypeVar("Result")


async def overlapped(first: Coroutine[Any, Any, None], second: Coroutine[Any, Any, Result]) -> Result:
    """Run both at once. The result of the second counts when the first has ended well; neither outlives the call."""
    later = asyncio.create_task(second)  # takes the first step: whom it calls can work while the other goes on here
    sooner = asyncio.create_task(first)
    try:
        await asyncio.wait((sooner,))  # which, cancelled, leaves it to take its first step
        await sooner
        return await later
    except BaseException:
        await stop(sooner, later)
        raise


async def stop(*tasks: asyncio.Task[Any]) -> None:
    """Cancel tasks and wait until they have ended; what they raise has been reported or no longer counts."""
    try:
        await asyncio.sleep(0)  # a task that is cancelled before its first step never comes to what it does at its end
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@contextmanager
def minding_cancellation() -> Iterator[None]:
    """Let a cancellation that comes within the block end it, whatever a library there makes of it.

    ``asyncio.wait_for`` before Python 3.12 forgets one that comes as its work ends, and others answer with an error.
    """
    before = _cancellations()
    try:
        yield
    finally:
        if _cancellations() > before:
            raise asyncio.CancelledError


def _cancellations() -> int:
    task = asyncio.current_task()
    return task.cancelling() if task else 0
