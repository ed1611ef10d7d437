"""The session store on a real Redis: what each call does and refuses."""

import pytest

from coordinator.session import FinishReason, SessionState, Speculation, TokenSource, Usage
from specdec.errors import DataLost, SessionBusy, SessionNotFound, SpecdecError, StaleFence
from specdec.fence import Fence
from specdec.parameters import SamplingParams, Verification
from specdec.prefix import token_bytes
from tests.stored_sessions import PROMPT, A, B, C, expire_lease, grow, key, new_session


async def test_everything_comes_back_as_it_was_stored(store):
    session = new_session()
    session.params = SamplingParams(
        temperature=0.7, top_k=3, top_p=0.1, logit_bias={7: -100.0, 2**32 - 1: 0.1}, seed=2**64 - 1, stop=("ü\n", "b"),
        stop_token_ids=(2,), logprobs=0, ignore_eos=True,
    )  # fmt: skip
    session.speculation = Speculation(0, Verification.COUPLED)
    await store.create(session)
    grow(session, 9, source=TokenSource.BONUS)
    session.replicas = {"target": "host:1"}
    session.usage.accepted_per_position = [2, 1]
    session.finish_reason, session.matched_stop = FinishReason.STOP, ""
    await store.commit(session)
    assert await store.read("s1", "ann") == session
    assert session.state is SessionState.FINISHED
    assert session.stored_length == 4


async def test_the_layout_in_redis(store, raw_redis):
    session = new_session()
    await store.create(session)
    grow(session, 9)
    await store.commit(session)
    assert sorted(raw_redis.keys()) == [key("meta").encode(), key("sources").encode(), key("tokens").encode()]
    assert raw_redis.get(key("tokens")) == token_bytes([*PROMPT, 9])
    assert raw_redis.get(key("sources")) == bytes([0, 0, 0, 1])
    meta = {name.decode(): value.decode() for name, value in raw_redis.hgetall(key("meta")).items()}
    assert (meta["schema"], meta["seed"], meta["length"], meta["fence_counter"]) == ("1", str(2**64 - 1), "4", "1")


async def test_every_change_renews_all_three_ttls_and_the_lease(store, raw_redis):
    session = new_session()

    async def renewed(change):
        if raw_redis.exists(key("meta")):
            expire_lease(raw_redis)
        for part in ("meta", "tokens", "sources"):
            raw_redis.pexpire(key(part), 50_000)
        await change(session)
        seconds, micros = raw_redis.time()
        lease = int(raw_redis.hget(key("meta"), "lease_until")) - (seconds * 1000 + micros // 1000)
        return {raw_redis.pttl(key(part)) > 500_000 for part in ("meta", "tokens", "sources")} == {
            True
        }, 0 < lease <= 30_000

    assert await renewed(store.create) == (True, True)
    assert await renewed(store.renew) == (True, True)
    grow(session, 9)
    assert await renewed(store.commit) == (True, True)
    assert await renewed(store.interrupt) == (True, False)


async def test_a_session_is_unknown_to_other_principals(store):
    await store.create(new_session())
    for call in (store.read, store.delete):
        with pytest.raises(SessionNotFound):
            await call("s1", "bob")
        with pytest.raises(SessionNotFound):
            await call("s2", "ann")
    for call in (store.take, store.resume):
        with pytest.raises(SessionNotFound):
            await call("s1", "bob", B)
    assert (await store.read("s1", "ann")).fence == Fence(1, A)


async def test_an_id_that_exists_is_busy_but_the_same_create_again_is_not(store):
    session = new_session()
    await store.create(session)
    await store.create(session)
    with pytest.raises(SessionBusy):
        await store.create(new_session(B))
    assert (await store.read("s1", "ann")).fence == Fence(1, A)


async def test_a_live_lease_keeps_others_out_until_it_ends(store, raw_redis):
    session = new_session()
    await store.create(session)
    with pytest.raises(SessionBusy) as busy:
        await store.take("s1", "ann", B)
    assert 0 < busy.value.retry_seconds <= 30
    assert (await store.read("s1", "ann")).state is SessionState.RUNNING
    expire_lease(raw_redis)
    assert (await store.read("s1", "ann")).state is SessionState.INTERRUPTED
    taken = await store.take("s1", "ann", B)
    assert (taken.fence, taken.tokens, taken.state) == (Fence(2, B), PROMPT, SessionState.RUNNING)


async def test_take_again_with_the_same_owner_is_the_same_claim(store):
    await store.create(new_session())
    first = await store.resume("s1", "ann", B)
    again = await store.take("s1", "ann", B)
    assert first.fence == again.fence == Fence(2, B)
    await store.interrupt(again)
    assert (await store.take("s1", "ann", B)).fence == Fence(3, B)


async def test_a_claim_rises_above_what_model_servers_have_seen(store):
    await store.create(new_session())
    assert (await store.resume("s1", "ann", B, above=7)).fence == Fence(8, B)
    assert (await store.resume("s1", "ann", C, above=3)).fence == Fence(9, C)


async def test_a_superseded_claim_changes_nothing(store):
    old = new_session()
    await store.create(old)
    new = await store.resume("s1", "ann", B)
    grow(old, 7)
    for change in (store.commit, store.renew):
        with pytest.raises(StaleFence) as stale:
            await change(old)
        assert not stale.value.metadata  # it goes on to a client
    with pytest.raises(StaleFence):
        await store.begin_answer(old, [1])
    await store.interrupt(old)
    assert await store.read("s1", "ann") == new


async def test_an_expired_lease_that_nobody_took_is_still_good(store, raw_redis):
    session = new_session()
    await store.create(session)
    expire_lease(raw_redis)
    grow(session, 7)
    await store.commit(session)
    assert (await store.read("s1", "ann")).state is SessionState.RUNNING


async def test_late_repeats_change_nothing(store):
    session = new_session()
    await store.create(session)
    grow(session, 7)
    early = await store.read("s1", "ann")
    grow(early, 7)
    await store.commit(session)
    await store.commit(session)
    grow(session, 8, 9)
    session.finish_reason = FinishReason.LENGTH
    await store.commit(session)
    for _ in range(2):
        await store.commit(early)
        await store.commit(session)
    found = await store.read("s1", "ann")
    assert found == session
    assert found.state is SessionState.FINISHED
    taken = await store.take("s1", "ann", B)  # the lease is not back either
    assert taken.state is SessionState.FINISHED


async def test_a_claim_that_was_given_up_adds_nothing_more(store):
    session = new_session()
    await store.create(session)
    grow(session, 7)
    await store.interrupt(session)
    await store.interrupt(session)
    await store.commit(session)
    found = await store.read("s1", "ann")
    assert (found.state, found.tokens) == (SessionState.INTERRUPTED, [*PROMPT, 7])
    grow(session, 8)
    with pytest.raises(StaleFence):
        await store.commit(session)
    assert (await store.take("s1", "ann", B)).tokens == [*PROMPT, 7]


async def test_giving_up_after_an_answer_began_whose_reply_was_lost(store):
    session = new_session()
    await store.create(session)
    unaware = await store.read("s1", "ann")
    await store.begin_answer(session, [7])
    await store.interrupt(unaware)
    found = await store.take("s1", "ann", B)
    assert found.tokens == [*PROMPT, 7]


async def test_tokens_that_disagree_under_the_same_fence_are_data_loss(store):
    session = new_session()
    await store.create(session)
    twin = await store.read("s1", "ann")
    grow(session, 7, 8)
    await store.commit(session)
    grow(twin, 6)
    for change in (store.commit, store.interrupt, store.renew):
        with pytest.raises(DataLost):
            await change(twin)
    assert (await store.read("s1", "ann")).tokens == [*PROMPT, 7, 8]


async def test_a_finished_session_is_continued(store):
    session = new_session()
    await store.create(session)
    grow(session, 7)
    session.finish_reason, session.matched_stop = FinishReason.STOP, "x"
    await store.commit(session)
    taken = await store.take("s1", "ann", B)
    assert (taken.state, taken.finish_reason) == (SessionState.FINISHED, FinishReason.STOP)
    taken.params = SamplingParams(temperature=1.0, seed=3)
    before = await store.read("s1", "ann")
    for _ in range(2):  # the reply of the first may have been lost
        before.params = taken.params
        await store.begin_answer(before, [1, 2])
        before = taken
    found = await store.read("s1", "ann")
    assert found == taken
    assert (found.state, found.finish_reason, found.matched_stop) == (SessionState.RUNNING, None, None)
    assert (found.tokens, found.prompt_length, found.answer) == ([*PROMPT, 7, 1, 2], 6, [])
    assert (found.sources, found.usage) == (bytes([0, 0, 0, 1, 0, 0]), Usage(prompt_tokens=6))
    assert found.params == SamplingParams(temperature=1.0, seed=3)


async def test_a_claim_on_a_finished_session_is_given_up_without_losing_the_finish(store):
    session = new_session()
    session.finish_reason = FinishReason.LENGTH
    await store.create(session)
    await store.commit(session)
    await store.interrupt(await store.take("s1", "ann", B))
    found = await store.read("s1", "ann")
    assert (found.state, found.finish_reason) == (SessionState.FINISHED, FinishReason.LENGTH)
    await store.take("s1", "ann", C)


async def test_a_deleted_session_stays_deleted(store, raw_redis):
    session = new_session()
    session.replicas = {"draft": "host:2"}
    await store.create(session)
    deleted = await store.delete("s1", "ann")
    assert (deleted.replicas, deleted.tokens) == ({"draft": "host:2"}, PROMPT)
    assert deleted.fence > session.fence
    with pytest.raises(SessionNotFound):
        await store.read("s1", "ann")
    with pytest.raises(SessionNotFound):
        await store.delete("s1", "ann")
    grow(session, 7)
    with pytest.raises(StaleFence):
        await store.commit(session)
    await store.interrupt(session)
    session.fence = Fence(9, C)  # even from a coordinator that Redis forgot before the deletion
    with pytest.raises(StaleFence):
        await store.commit(session)
    assert raw_redis.keys() == [key("meta").encode()]
    assert raw_redis.pttl(key("meta")) > 0


async def test_an_id_can_be_used_again_after_a_deletion_out_of_reach_of_the_old_claim(store):
    old = new_session(B)
    await store.create(old)
    deleted = await store.delete("s1", "ann")
    new = new_session(A, principal="bob")
    await store.create(new)
    assert new.fence == Fence(deleted.fence.counter + 1, A)
    grow(old, 7)
    with pytest.raises(StaleFence):
        await store.commit(old)
    assert await store.read("s1", "bob") == new


async def test_a_lost_part_is_refused_to_readers_and_left_to_its_coordinator(store, raw_redis):
    session = new_session()
    await store.create(session)
    for part in ("tokens", "sources"):
        raw_redis.delete(key(part))
        with pytest.raises(DataLost):
            await store.read("s1", "ann")
        with pytest.raises(DataLost):
            await store.resume("s1", "ann", B)
        await store.renew(session)
        assert await store.read("s1", "ann") == session
    raw_redis.delete(key("meta"))
    with pytest.raises(SessionBusy):
        await store.create(new_session(B))
    await store.renew(session)
    assert await store.read("s1", "ann") == session


async def test_another_schema_is_refused(store, raw_redis):
    await store.create(new_session())
    raw_redis.hset(key("meta"), "schema", "2")
    with pytest.raises(SpecdecError, match="schema 2"):
        await store.read("s1", "ann")
