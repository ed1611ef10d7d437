"""Work on a thread that does not stay."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Result = TypeVar("Result")


async def on_passing_thread(work: Callable[[], Result]) -> Result:
    """Do some work on a thread that has ended when this returns.

    While a thread lives that has used OpenMP, its workers count among those that want the cores. Where that makes too
    many, the engine's workers sleep between kernels instead of spinning: passes took 1.5 times as long on two cores.

    Raises:
        Exception: whatever the work raises.
    """
    with ThreadPoolExecutor(1) as passing:
        return await asyncio.get_running_loop().run_in_executor(passing, work)
