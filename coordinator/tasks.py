"""How work overlaps and what cancelling leaves whole."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


async def overlapped(first: Coroutine[Any, Any, None], second: Coroutine[Any, Any, Result]) -> Result:
    """Run both at once. The result of the second counts when the first has ended well; neither outlives the call."""
    later = asyncio.create_task(second)  # takes the first step: whom it calls can work while the other goes on here
    sooner = asyncio.create_task(first)
    try:
        await sooner
        return await later
    except BaseException:
        await stop(sooner, later)
        raise


async def stop(*tasks: asyncio.Task[Any]) -> None:
    """Cancel tasks and wait until they have ended; what they raise has been reported or no longer counts."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def undisturbed(work: Coroutine[Any, Any, None]) -> None:
    """Await work that goes on to its end when the caller is cancelled, and is waited for then, too."""
    task = asyncio.create_task(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.gather(asyncio.shield(task), return_exceptions=True)
        raise
