"""Work on a thread that does not stay."""

import threading

import pytest

from specdec.serving.passing_thread import on_passing_thread


async def test_the_thread_has_ended_when_the_result_is_there():
    thread = await on_passing_thread(threading.current_thread)
    assert thread is not threading.current_thread()
    assert not thread.is_alive()


async def test_errors_pass_through():
    with pytest.raises(LookupError, match="not there"):
        await on_passing_thread(_fail)


def _fail():
    raise LookupError("not there")
