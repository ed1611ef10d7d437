"""The streams that an answer's calls share: one to each service, and none left when the answer has ended."""

import asyncio
from collections import Counter

import grpc
import pytest

from specdec.errors import CacheFull, SpecdecError
from specdec.v1 import common_pb2, generation_pb2
from tests.integration.coordinator_process import coordinating
from tests.integration.model_services import FakeDraft, FakeTarget, continuation, serving
from tests.integration.serving_world import until


class World:
    """A coordinator between fakes, with what it has opened and left open."""

    def __init__(self, running, target, draft, servers):
        self.running, self.target, self.draft, self.servers = running, target, draft, servers
        self.opened = Counter()
        for replicas, method in ((running.fleet.targets, "VerifyStream"), (running.fleet.drafts, "ProposeStream")):
            [replica] = replicas.usable()
            setattr(replica.stub, method, self.counting(method, getattr(replica.stub, method)))

    def counting(self, name, method):
        def open_stream(**options):
            self.opened[name] += 1
            return method(**options)

        return open_stream

    def answer(self, count=12, **fields):
        params = common_pb2.SamplingParams(max_new_tokens=count)
        return self.running.generate(generation_pb2.GenerateRequest(prompt="hi", sampling_params=params, **fields))

    async def nothing_left(self):
        """Wait until every stream has ended on both sides."""
        clients = (self.running.servicer._draft, self.running.servicer._target)
        await until(lambda: not any(client._acknowledged for client in clients))
        await until(lambda: not any(server._calls._between for server in self.servers))


@pytest.fixture
async def world(redis_url):
    target, draft = FakeTarget(), FakeDraft()
    async with serving(target) as large, serving(draft) as small:
        addresses = [[f"127.0.0.1:{server.port}"] for server in (large, small)]
        async with coordinating(redis_url, *addresses) as running:
            for replicas in (running.fleet.targets, running.fleet.drafts):
                await replicas.wait_for(replicas.usable, 30)
            yield World(running, target, draft, (large, small))


async def test_the_calls_of_an_answer_share_a_stream_to_each_service(world):
    assert len(await world.answer()) > 2
    assert world.opened == {"VerifyStream": 1, "ProposeStream": 1}
    await world.nothing_left()


async def test_answers_leave_no_stream_however_they_end(world):
    assert len(await asyncio.gather(*(world.answer() for _ in range(20)))) == 20
    await world.nothing_left()
    world.target.errors = [SpecdecError("broken")]
    with pytest.raises(grpc.aio.AioRpcError):
        await world.answer()
    await world.nothing_left()
    world.draft.errors = [CacheFull("no room")]
    events = await world.answer()
    assert [token for event in events for token in event.token_ids] == continuation(b"hi", 12)
    await world.nothing_left()
    world.target.gate, before = asyncio.Event(), world.target.calls["Verify"]
    leaving = world.running.stub.Generate(generation_pb2.GenerateRequest(prompt="hi"))
    await world.target.reached("Verify", before + 1)
    leaving.cancel()
    await world.nothing_left()
