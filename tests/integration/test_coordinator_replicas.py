"""Several replicas of a service: which of them a session goes to, and how those that hang or break are left out."""

import asyncio
import socket
from contextlib import AsyncExitStack, asynccontextmanager

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from pydantic import ValidationError

from coordinator import replicas
from coordinator.replica import LONGEST_RETRY_SECONDS, Replica
from coordinator.settings import CoordinatorSettings
from specdec.errors import CacheFull, QueueFull, SpecdecError, StaleFence
from specdec.serving.status import from_rpc_error
from specdec.v1 import common_pb2, generation_pb2
from tests.integration.coordinator_process import PATIENCE_SECONDS, coordinating
from tests.integration.model_services import FakeDraft, FakeTarget, continuation, serving
from tests.integration.serving_world import until

MALFORMED = "a model server says that a claim is stale, and not under which"
SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
UNAVAILABLE = generation_pb2.FALLBACK_REASON_DRAFT_UNAVAILABLE


def request(count=12, **fields):
    params = common_pb2.SamplingParams(max_new_tokens=count)
    speculation = generation_pb2.SpeculationParams(gamma=4)
    return generation_pb2.GenerateRequest(prompt="hi", sampling_params=params, speculation=speculation, **fields)


def tokens_of(events):
    return [token for event in events for token in event.token_ids]


async def usable(service, count):
    await service.wait_for(lambda: len(service.usable()) == count, 30)


@asynccontextmanager
async def between(redis_url, targets, drafts, **settings):
    """Run a coordinator between services of ours, all of which are in use."""
    async with AsyncExitStack() as stack:
        addresses = [
            [f"127.0.0.1:{(await stack.enter_async_context(serving(service))).port}" for service in services]
            for services in (targets, drafts)
        ]
        running = await stack.enter_async_context(coordinating(redis_url, *addresses, **settings))
        await usable(running.fleet.targets, len(targets))
        await usable(running.fleet.drafts, len(drafts))
        yield running


class Hanging:
    """A service whose model can hang, while health and what it serves are answered as before."""

    def __init__(self):
        super().__init__()
        self.going = asyncio.Event()
        self.going.set()
        self.probes = self.most_probes = 0

    async def committed(self, message):
        await self.going.wait()
        return await super().committed(message)

    async def Release(self, request, context):
        self.probes += 1
        self.most_probes = max(self.probes, self.most_probes)
        try:
            await self.count("Probe")
            await self.going.wait()
            return await super().Release(request, context)
        finally:
            self.probes -= 1


class HangingDraft(Hanging, FakeDraft):
    pass


class HangingTarget(Hanging, FakeTarget):
    pass


async def test_a_draft_that_hangs_costs_one_round_and_is_probed_by_nobodys_calls_until_it_is_back(redis_url):
    draft = HangingDraft()
    async with between(redis_url, [FakeTarget()], [draft], propose_timeout=0.2) as running:
        draft.going.clear()
        events = await running.generate(request(60))
        assert tokens_of(events) == continuation(b"hi", 60)
        assert {event.round.fallback for event in events[:-1]} == {UNAVAILABLE}
        assert draft.calls["Propose"] <= 1  # none where the call was late before it had reached its handler
        await draft.reached("Probe", 3)
        assert await running.generate(request(20))
        assert draft.calls["Propose"] <= 1
        assert draft.most_probes == 1
        running.fleet.drafts.silence = PATIENCE_SECONDS  # what is asked from now on must be answered in time
        draft.going.set()
        await usable(running.fleet.drafts, 1)
        assert not any(event.round.fallback for event in await running.generate(request(20)))


async def test_a_target_that_hangs_loses_its_sessions_and_gets_none(redis_url):
    hanging, well = HangingTarget(), FakeTarget()
    async with between(redis_url, [hanging, well], [], verify_timeout=1) as running:
        hanging.going.clear()
        well.gate = asyncio.Event()  # until each has one
        answers = [asyncio.create_task(running.generate(request(20))) for _ in range(2)]
        await hanging.reached("Verify", 1)
        well.gate.set()
        await hanging.reached("Probe", 1)
        answers += [asyncio.create_task(running.generate(request(20))) for _ in range(4)]
        assert [tokens_of(await answer) for answer in answers] == [continuation(b"hi", 20)] * 6
        assert hanging.calls["Verify"] == 1


@asynccontextmanager
async def followed_health(running):
    """Give what waits for a status among all those that follow each other from now on: some do not last."""
    watch = health_pb2_grpc.HealthStub(running.channel).Watch(health_pb2.HealthCheckRequest(), timeout=PATIENCE_SECONDS)

    async def becomes(status):
        while (await watch.read()).status != status:
            pass

    yield becomes
    watch.cancel()


async def test_a_target_that_only_fails_is_not_serving_until_it_is_well(redis_url):
    target = FakeTarget()
    async with between(redis_url, [target], []) as running, followed_health(running) as becomes:
        await becomes(SERVING)
        target.errors = [SpecdecError("the forward pass failed")] * 3
        for _ in range(3):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await running.generate(request())
            assert caught.value.code() is grpc.StatusCode.INTERNAL
        await becomes(NOT_SERVING)
        await becomes(SERVING)
        assert tokens_of(await running.generate(request())) == continuation(b"hi", 12)
        target.errors = [SpecdecError("the forward pass failed")] * 2
        for _ in range(2):
            with pytest.raises(grpc.aio.AioRpcError):
                await running.generate(request())
        assert running.fleet.targets.usable()  # it has answered meanwhile


async def test_a_draft_whose_model_is_broken_leaves_its_sessions_to_another(redis_url):
    broken, well = FakeDraft(), FakeDraft()
    async with between(redis_url, [FakeTarget()], [broken, well]) as running:
        broken.errors = [SpecdecError("the forward pass failed")] * 1000
        for _ in range(4):  # which of the two an answer begins with is left to chance
            events = await running.generate(request(20))
            assert tokens_of(events) == continuation(b"hi", 20)
            assert not any(event.round.fallback for event in events)
        assert broken.calls["Propose"] <= 4


NO_COUNTERS = [{}, *({"counter": wrong} for wrong in ("", "0", "-1", "many", "1e3", str(2**53), "9" * 5000))]


@pytest.mark.parametrize("metadata", NO_COUNTERS)
async def test_a_model_server_that_calls_a_claim_stale_and_names_none_above_it_is_broken(redis_url, metadata):
    target, draft = FakeTarget(), FakeDraft()
    async with between(redis_url, [target], [draft]) as running:
        draft.errors = [StaleFence("seen", metadata=metadata)]
        events = await running.generate(request(session_id="s"))
        assert tokens_of(events) == continuation(b"hi", 12)
        assert events[0].round.fallback == UNAVAILABLE
        await usable(running.fleet.drafts, 1)  # which it was not for a moment
        target.errors = [StaleFence("seen", metadata=metadata)]
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await running.generate(request())
        assert (caught.value.code(), caught.value.details()) == (grpc.StatusCode.INTERNAL, MALFORMED)
        [replica] = running.fleet.targets.usable()
        assert replica.failures == 1


async def test_new_sessions_go_where_fewest_are_and_a_lost_replica_moves_its_own_alone(redis_url):
    targets = [FakeTarget(), FakeTarget()]
    async with AsyncExitStack() as stack:
        stacks = [await stack.enter_async_context(AsyncExitStack()) for _ in targets]
        servers = [
            await each.enter_async_context(serving(target)) for each, target in zip(stacks, targets, strict=True)
        ]
        addresses = [f"127.0.0.1:{server.port}" for server in servers]
        running = await stack.enter_async_context(coordinating(redis_url, addresses, []))
        await usable(running.fleet.targets, 2)
        going = asyncio.Event()
        for target in targets:
            target.gate = going
        answers = [asyncio.create_task(running.generate(request(30))) for _ in range(6)]
        for target in targets:
            await target.reached("Verify", 3)
        assert [target.calls["Verify"] for target in targets] == [3, 3]
        await stacks[0].aclose()
        await targets[1].reached("Verify", 6)
        going.set()
        assert [tokens_of(await answer) for answer in answers] == [continuation(b"hi", 30)] * 6
        assert targets[1].starts.count(0) == 6  # whole: its own three at first, those that moved once, and no more


async def test_a_session_is_continued_where_it_is_warm_by_whichever_coordinator(redis_url):
    targets = [FakeTarget(), FakeTarget()]
    async with (
        serving(targets[0]) as one,
        serving(targets[1]) as other,
        AsyncExitStack() as stack,
    ):
        addresses = [f"127.0.0.1:{server.port}" for server in (one, other)]
        first, second = [await stack.enter_async_context(coordinating(redis_url, addresses, [])) for _ in range(2)]
        for each in (first, second):
            await usable(each.fleet.targets, 2)
        for number in range(6):
            await first.generate(request(3, session_id=f"s{number}"))
        held = [set(target.held) for target in targets]
        for number in range(6):
            await second.generate(request(3, session_id=f"s{number}"))
        assert [set(target.held) for target in targets] == held


async def test_a_full_replica_is_left_for_another_and_told_so_only_when_all_are(redis_url):
    targets, drafts = [FakeTarget(), FakeTarget()], [FakeDraft(), FakeDraft()]
    async with between(redis_url, targets, drafts) as running:
        for full in (targets[0], drafts[0]):
            full.errors = [CacheFull("no room", retry_seconds=1.5)] * 1000
        for _ in range(4):  # which of the two an answer begins with is left to chance
            events = await running.generate(request(20))
            assert tokens_of(events) == continuation(b"hi", 20)
            assert not any(event.round.fallback for event in events)
        targets[1].errors = [QueueFull("too many wait", retry_seconds=1.5)] * 1000
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await running.generate(request())
        error = from_rpc_error(caught.value)
        assert (error.code, error.retry_seconds) == ("RESOURCE_EXHAUSTED", 1.5)


async def test_a_session_that_outgrows_its_replica_gives_up_its_room_there_and_moves(redis_url):
    targets = [FakeTarget(), FakeTarget()]
    async with between(redis_url, targets, []) as running:
        events = []
        async for event in running.stub.Generate(request(60, session_id="s")):
            events.append(event)
            if len(events) == 2:
                small, large = sorted(targets, key=lambda target: not target.held)
                small.errors = [CacheFull("no room", retry_seconds=1.0)] * 1000
        assert tokens_of(events) == continuation(b"hi", 60)
        assert [session_id for session_id, keep in small.released if keep] == ["s"]
        assert large.starts[0] == 0


class Names:
    """What DNS says: addresses by name, which a test may change, and how often it was asked."""

    def __init__(self):
        self.known, self.asked, self._ask = {}, 0, socket.getaddrinfo

    def look_up(self, host, port, *args, **kwargs):
        if host not in self.known:
            return self._ask(host, port, *args, **kwargs)
        self.asked += 1
        if not self.known[host]:
            raise socket.gaierror("Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, int(port))) for each in self.known[host]]

    async def say(self, name, *addresses):
        """Say this from now on; return once it has been heard."""
        self.known[name], before = addresses, self.asked
        await until(lambda: self.asked > before + 2)


@pytest.fixture
def names(monkeypatch):
    names = Names()
    monkeypatch.setattr(socket, "getaddrinfo", names.look_up)
    monkeypatch.setattr(replicas, "RESOLVE_SECONDS", 0.02)
    return names


async def test_replicas_are_found_by_dns_new_ones_are_noticed_and_gone_ones_dropped(redis_url, names, held_port):
    one, other = FakeTarget(), FakeTarget()
    names.known["targets.test"] = ()
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(AsyncExitStack())
        running = await stack.enter_async_context(
            coordinating(redis_url, [f"dns:///targets.test:{held_port}"], [], verify_timeout=5)
        )
        targets = running.fleet.targets
        await first.enter_async_context(serving(one, held_port))
        await names.say("targets.test", "127.0.0.1")
        await usable(targets, 1)
        await stack.enter_async_context(serving(other, held_port, host="127.0.0.2"))
        await names.say("targets.test", "127.0.0.2", "127.0.0.1")
        await usable(targets, 2)
        one.gate = other.gate = asyncio.Event()
        answers = [asyncio.create_task(running.generate(request(30))) for _ in range(2)]
        await one.reached("Verify", 1)
        await other.reached("Verify", 1)
        await names.say("targets.test", "127.0.0.2")
        assert len(targets.usable()) == 2  # one that answers is no worse for DNS that says nothing of it
        await first.aclose()
        other.gate.set()
        assert [tokens_of(await answer) for answer in answers] == [continuation(b"hi", 30)] * 2
        await until(lambda: [each.address for each in targets._replicas.values()] == [f"127.0.0.2:{held_port}"])
        await names.say("targets.test")
        assert tokens_of(await running.generate(request(30))) == continuation(b"hi", 30)


async def test_an_answer_goes_on_with_a_replica_that_has_gone_from_dns_and_come_back_at_its_address(
    redis_url, names, held_port
):
    names.known["targets.test"] = ("127.0.0.1",)
    async with AsyncExitStack() as stack:
        running = await stack.enter_async_context(coordinating(redis_url, [f"dns:///targets.test:{held_port}"], []))
        targets, before = running.fleet.targets, FakeTarget()
        async with serving(before, held_port):
            await usable(targets, 1)
            answer = asyncio.create_task(running.generate(request(60)))
            await before.reached("Verify", 2)
            before.gate = asyncio.Event()
            [gone] = targets.usable()
        silence, targets.silence = targets.silence, 0  # its channel is closed at once
        names.known["targets.test"] = ("127.0.0.2",)
        await until(lambda: gone not in targets._replicas.values())
        await asyncio.wait((gone.following,))
        targets.silence = silence
        await stack.enter_async_context(serving(FakeTarget(), held_port))
        names.known["targets.test"] = ("127.0.0.1",)
        assert tokens_of(await answer) == continuation(b"hi", 60)


async def test_a_draft_that_is_lost_while_another_is_asked_is_not_asked(redis_url):
    drafts = [HangingDraft(), HangingDraft()]
    async with between(redis_url, [FakeTarget()], drafts) as running:
        for draft in drafts:
            draft.going.clear()
            draft.errors = [QueueFull("too many wait", retry_seconds=1.5)]
        answer = asyncio.create_task(running.generate(request()))
        await until(lambda: any(draft.calls["Propose"] for draft in drafts))
        [held] = running.servicer._draft._acknowledged.values()
        [other] = [replica for replica in running.fleet.drafts.usable() if replica is not held.replica]
        running.fleet.drafts.lost(other, "it has gone")
        [asked] = [draft for draft in drafts if draft.calls["Propose"]]
        asked.going.set()
        assert (await answer)[0].round.fallback == generation_pb2.FALLBACK_REASON_DRAFT_OVERLOADED


def test_a_name_without_a_port_is_refused_at_the_start():
    for place in ("dns:///targets", "dns:///:50053", "dns:///targets:http", "dns:///targets:0"):
        with pytest.raises(ValidationError, match="must be dns:///NAME:PORT"):
            CoordinatorSettings(target_addresses=place)


def test_a_replica_is_left_alone_ever_longer():
    pauses = []
    for failures in range(1, 40):
        pauses.append(Replica("host:1", None, None, failures=failures).pause)
    assert pauses[:4] == [0, 0.5, 1, 2]
    assert pauses == sorted(pauses)
    assert pauses[-1] == LONGEST_RETRY_SECONDS
