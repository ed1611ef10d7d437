"""The deadline that a client sets: it is passed on to the model services, and answers end a margin before it.

A deadline is a moment of the event loop's clock, in seconds, at which the client will have gone; None for a client that
waits for as long as it takes.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from specdec.errors import DeadlineExceeded

MARGIN_SHARE = 0.1  # of the time that is left
LONGEST_MARGIN_SECONDS = 0.5  # enough to give the claim up and tell the client


def deadline_of(context: Any) -> float | None:
    """Return the deadline of a call that is being served."""
    seconds = context.time_remaining()
    return None if seconds is None else asyncio.get_running_loop().time() + seconds


def seconds_until(deadline: float | None) -> float | None:
    """Return the seconds that are left, as calls of other services take them."""
    return None if deadline is None else deadline - asyncio.get_running_loop().time()


@asynccontextmanager
async def ending_before(deadline: float | None) -> AsyncIterator[None]:
    """Cancel what is awaited in the block a margin before a deadline.

    Raises:
        DeadlineExceeded: it was.
    """
    seconds = seconds_until(deadline)
    margin = min(LONGEST_MARGIN_SECONDS, MARGIN_SHARE * (seconds or 0.0))
    try:
        async with asyncio.timeout(None if seconds is None else seconds - margin) as limit:
            yield
    except TimeoutError as error:
        if not limit.expired():
            raise
        raise DeadlineExceeded("the client's time has run out; what is committed can be resumed") from error
