"""What comes at an unlucky moment, found by letting it come at every step of the event loop."""

import asyncio


async def take_steps(count):
    """Let the event loop take so many steps."""
    for _ in range(count):
        await asyncio.sleep(0)


async def cut_after(steps, work):
    """Cancel work after so many steps; say whether it still ran, which must then end cancelled."""
    task = asyncio.create_task(work)
    await take_steps(steps)
    if not task.cancel():
        return False
    await asyncio.wait((task,))
    assert task.cancelled()
    return True
