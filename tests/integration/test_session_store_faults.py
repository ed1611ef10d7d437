"""The session store when Redis is away, refuses, hangs, or comes back older or empty."""

import asyncio
import contextlib
import time

import pytest
from redis.exceptions import ResponseError

from coordinator import leaving, session_store
from coordinator.session import FinishReason, SessionState
from specdec.errors import DataLost, PeerUnavailable, SessionNotFound, StaleFence
from tests.integration.serving_world import until
from tests.redis_server import running_redis
from tests.steps import cut_after, take_steps
from tests.stored_sessions import PROMPT, B, C, grow, key, new_session, open_store


async def test_healing_a_redis_that_came_back_older(store, redis_server):
    session = new_session()
    await store.create(session)
    redis_server.save()
    grow(session, 7, 8)
    await store.commit(session)
    redis_server.kill()
    redis_server.start()
    assert (await store.read("s1", "ann")).tokens == PROMPT
    grow(session, 9)
    await store.commit(session)
    assert await store.read("s1", "ann") == session


async def test_healing_an_empty_redis(store, redis_server):
    session = new_session()
    await store.create(session)
    grow(session, 7)
    await store.commit(session)
    redis_server.restart_empty()
    with pytest.raises(SessionNotFound):
        await store.read("s1", "ann")
    session.finish_reason = FinishReason.STOP
    await store.commit(session)
    found = await store.read("s1", "ann")
    assert found == session
    assert found.state is SessionState.FINISHED


async def test_an_orderly_restart_forgets_the_scripts_and_nothing_else(store, redis_server):
    session = new_session()
    await store.create(session)
    redis_server.restart()
    assert await store.read("s1", "ann") == session
    grow(session, 7)
    await store.commit(session)
    assert await store.read("s1", "ann") == session


async def test_an_append_only_redis_loses_nothing_in_a_kill():
    with running_redis(append_only=True) as server:
        opened = open_store(server.url)
        session = new_session()
        await opened.create(session)
        grow(session, 7)
        await opened.commit(session)
        server.kill()
        server.start()
        assert await opened.read("s1", "ann") == session
        await opened.close()


async def test_the_fence_and_the_finish_of_an_older_redis_do_not_come_back(store, redis_server):
    first = new_session()
    await store.create(first)
    grow(first, 7)
    first.finish_reason = FinishReason.STOP
    await store.commit(first)
    redis_server.save()
    second = await store.take("s1", "ann", B)
    await store.begin_answer(second, [1])
    redis_server.kill()
    redis_server.start()
    assert (await store.read("s1", "ann")).state is SessionState.FINISHED
    await store.renew(second)
    found = await store.read("s1", "ann")
    assert found == second
    assert (found.state, found.finish_reason, found.prompt_length) == (SessionState.RUNNING, None, 5)
    with pytest.raises(StaleFence):
        await store.commit(first)


async def test_a_fence_of_the_same_counter_was_taken_later(store, redis_server):
    await store.create(new_session())
    redis_server.save()
    earlier = await store.resume("s1", "ann", C)
    redis_server.kill()
    redis_server.start()
    later = await store.resume("s1", "ann", B)
    assert later.fence < earlier.fence
    with pytest.raises(StaleFence):
        await store.renew(earlier)
    await store.renew(later)


async def test_what_was_committed_since_redis_came_back_is_never_replaced(store, redis_server):
    old = new_session()
    await store.create(old)
    redis_server.save()
    new = await store.resume("s1", "ann", B)
    grow(new, 7)
    await store.commit(new)
    redis_server.kill()
    redis_server.start()
    grow(old, 6)
    await store.commit(old)  # Redis has forgotten the claim that superseded it
    for change in (store.commit, store.interrupt):
        with pytest.raises(DataLost):
            await change(new)
    shorter = await store.read("s1", "ann")
    shorter.fence, shorter.tokens, shorter.sources = new.fence, list(PROMPT), bytearray(len(PROMPT))
    with pytest.raises(DataLost):
        await store.renew(shorter)
    assert (await store.read("s1", "ann")).tokens == [*PROMPT, 6]


async def test_redis_that_is_down_is_unavailable_and_then_serves_again(store, redis_server):
    session = new_session()
    await store.create(session)
    await store.ping()
    redis_server.stop()
    grow(session, 7)
    for call in (store.ping(), store.commit(session), store.read("s1", "ann"), store.take("s1", "ann", B)):
        with pytest.raises(PeerUnavailable) as away:
            await call
        assert away.value.retry_seconds > 0
    redis_server.start()
    await store.commit(session)
    assert await store.read("s1", "ann") == session


async def settled(call, session):
    """Call again until Redis has answered in time: it may be slow without being away."""
    while True:
        with contextlib.suppress(PeerUnavailable):
            return await call(session)


async def test_redis_that_hangs_is_unavailable_and_the_repeat_settles_it(redis_server, redis_url, monkeypatch):
    with monkeypatch.context() as impatient:
        impatient.setattr(session_store, "SOCKET_SECONDS", 0.1)
        opened = open_store(redis_url)
    session = new_session()
    await settled(opened.create, session)
    grow(session, 7)
    with redis_server.paused():
        with pytest.raises(PeerUnavailable):
            await opened.commit(session)
        assert session.stored_length == len(PROMPT)
    await settled(opened.commit, session)  # the abandoned ones run as well
    await opened.close()
    patient = open_store(redis_url)
    assert await patient.read("s1", "ann") == session
    await patient.close()


async def test_a_call_is_bounded_as_a_whole_however_long_redis_hangs(store, redis_server, monkeypatch):
    session = new_session()
    await store.create(session)
    grow(session, 7)
    with monkeypatch.context() as impatient, redis_server.paused():
        impatient.setattr(session_store, "CALL_SECONDS", 0.05)  # shorter than any of the driver's own
        for call in (store.commit(session), store.read("s1", "ann"), store.ping()):
            with pytest.raises(PeerUnavailable):
                await call
    await store.commit(session)  # the one that was given up has happened or not
    assert await store.read("s1", "ann") == session


async def test_a_create_that_was_refused_holds_no_claim_once_redis_is_back(store, redis_server, raw_redis, monkeypatch):
    monkeypatch.setattr(leaving, "AGAIN_SECONDS", 0.01)
    await store.create(new_session(session_id="first"))  # so that there is a connection for the next to hang on
    session = new_session()
    with monkeypatch.context() as impatient:
        impatient.setattr(session_store, "CALL_SECONDS", 0.05)
        with redis_server.paused():
            with pytest.raises(PeerUnavailable):
                await store.create(session)
            store.withdraw(session)
    await until(lambda: raw_redis.hget(key("meta"), "lease_until") == b"0")
    assert (await store.read("s1", "ann")).state is SessionState.INTERRUPTED


async def test_withdrawing_what_was_never_stored_stores_nothing(store):
    store.withdraw(new_session())
    await asyncio.gather(*store._leaving._tasks)
    with pytest.raises(SessionNotFound):
        await store.read("s1", "ann")


async def test_leaving_is_not_waited_for_while_redis_hangs_and_happens_afterwards(store, redis_server, monkeypatch):
    monkeypatch.setattr(leaving, "AGAIN_SECONDS", 0.01)
    session = new_session()
    await store.create(session)
    grow(session, 7)
    session.deadline = 0.0  # nobody has any time left
    with redis_server.paused():
        await store.leave(session)
        assert session.state is SessionState.RUNNING
    await asyncio.gather(*store._leaving._tasks)
    found = await store.read("s1", "ann")
    assert (found.state, found.tokens) == (SessionState.INTERRUPTED, session.tokens)


@pytest.mark.parametrize(
    ("refuse", "allow"),
    [
        ("CONFIG SET maxmemory 1", "CONFIG SET maxmemory 0"),
        ("REPLICAOF 127.0.0.1 1", "REPLICAOF NO ONE"),
        ("CONFIG SET min-replicas-to-write 1", "CONFIG SET min-replicas-to-write 0"),
    ],
    ids=["full", "read-only", "no-replicas"],
)
async def test_redis_that_refuses_writes_is_unavailable(store, raw_redis, refuse, allow):
    session = new_session()
    await store.create(session)
    raw_redis.execute_command(*refuse.split(" "))
    try:
        grow(session, 7)
        for call in (store.commit(session), store.create(new_session(session_id="s2")), store.resume("s1", "ann", B)):
            with pytest.raises(PeerUnavailable):
                await call
    finally:
        raw_redis.execute_command(*allow.split(" "))
    await store.commit(session)
    assert (await store.read("s1", "ann")) == session


async def test_a_mistake_of_ours_is_not_taken_for_an_outage(store, raw_redis):
    raw_redis.set(key("meta"), "not a hash")
    with pytest.raises(ResponseError, match="WRONGTYPE"):
        await store.read("s1", "ann")


def save_in_background(raw_redis):
    raw_redis.bgsave()
    while raw_redis.info("persistence")["rdb_bgsave_in_progress"]:
        time.sleep(0.01)


async def test_redis_that_cannot_save_is_unavailable(store, raw_redis, redis_server):
    session = new_session()
    await store.create(session)
    obstacle = redis_server.folder / "obstacle"
    obstacle.mkdir()
    raw_redis.config_set("dbfilename", "obstacle")
    try:
        save_in_background(raw_redis)
        grow(session, 7)
        with pytest.raises(PeerUnavailable):
            await store.commit(session)
    finally:
        raw_redis.config_set("dbfilename", "dump.rdb")
        obstacle.rmdir()
        save_in_background(raw_redis)
    await store.commit(session)


async def test_cancelled_calls_leave_the_connections_in_order(store):
    sessions = [new_session(session_id=f"s{index}") for index in range(4)]
    for number, session in enumerate(sessions):
        session.tokens[0] = number
        await store.create(session)
    for turn in range(80):
        session = sessions[turn % 4]
        grow(session, 100 + turn)
        tasks = [asyncio.create_task(store.commit(session)), asyncio.create_task(store.read("s0", "ann"))]
        for _ in range(turn % 9):
            await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        other = sessions[(turn + 1) % 4]
        assert (await store.read(other.session_id, "ann")).tokens[0] == other.tokens[0]
    for session in sessions:
        await store.commit(session)
        assert await store.read(session.session_id, "ann") == session


async def test_a_cancelled_call_ends_cancelled_at_whatever_step(store):
    session = new_session()
    await store.create(session)
    cut = 0
    for steps in range(60):
        grow(session, steps)
        cut += await cut_after(steps, store.commit(session))
        await store.commit(session)
    assert cut > 3


@pytest.mark.parametrize("way", ["take", "resume"])
async def test_a_cancelled_claim_is_not_kept_at_whatever_step(store, way):
    session = new_session()
    await store.create(session)
    await store.interrupt(session)
    for steps in range(60):
        task = asyncio.create_task(getattr(store, way)(session.session_id, "ann", f"{steps:032x}"))
        await take_steps(steps)
        if not task.cancel():
            await store.interrupt(await task)
        while others := asyncio.all_tasks() - {asyncio.current_task()}:  # what goes on for nobody
            await asyncio.wait(others)
        assert (await store.read(session.session_id, "ann")).state is SessionState.INTERRUPTED


async def test_a_store_that_closes_keeps_no_claim_of_a_caller_that_was_cancelled(store, redis_url, monkeypatch):
    monkeypatch.setattr(leaving, "MOMENT_SECONDS", 60.0)
    session = new_session()
    await store.create(session)
    await store.interrupt(session)
    for steps in range(12):
        closing = open_store(redis_url)
        await closing.ping()
        task = asyncio.create_task(closing.take(session.session_id, "ann", f"{steps:032x}"))
        await take_steps(steps)
        if not task.cancel():
            await closing.interrupt(await task)
        await asyncio.wait((task,))
        await closing.close()
        assert (await store.read(session.session_id, "ann")).state is SessionState.INTERRUPTED
