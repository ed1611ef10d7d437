"""Reading an engine's state: it is shown once a turn, so for a moment after an answer it is still the one before."""

import asyncio

from specdec.fence import Fence
from specdec.model.engine import Engine, EngineState


async def state_of(engine: Engine) -> EngineState:
    """Return a state that counts all that has been answered and taken off the queue by now."""
    for _ in range(2):  # the second is taken once the turn that answered the first has shown its state
        await engine.release("onlooker", Fence(1, "0" * 32), 0)
    return engine.state


async def at_rest(engine: Engine) -> EngineState:
    """Return the state in which nothing runs or waits any more, once it has come."""
    async with asyncio.timeout(30):
        while (state := await state_of(engine)).running or engine.queue_length:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    return state
