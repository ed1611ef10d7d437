"""Every process is ended in order and started again, one after the other, while clients ask: nobody loses anything."""

import asyncio
from contextlib import ExitStack

import pytest
from grpc.experimental import insecure_channel_credentials
from prometheus_client import CollectorRegistry

from client.connection import Coordinators
from coordinator.__main__ import make_fleet, make_store
from coordinator.metrics import Metrics
from coordinator.servicer import GenerationServicer
from coordinator.settings import CoordinatorSettings
from specdec.serving import telemetry
from specdec.serving.server import Server
from specdec.serving.settings import ServiceSettings
from specdec.v1 import common_pb2, draft_pb2_grpc, generation_pb2, generation_pb2_grpc, target_pb2_grpc
from tests.integration.model_services import FakeDraft, FakeTarget, continuation
from tests.ports import holding_port

GAMMAS = (0, 0, 2, 4)  # of each client
TOKENS = 40
PASS_SECONDS = 0.01
DRAIN_SECONDS = 0.2  # in which not every answer ends: some are handed over


class SlowTarget(FakeTarget):
    async def Verify(self, request, context):
        await asyncio.sleep(PASS_SECONDS)
        return await super().Verify(request, context)

    VerifyStream = Verify


class Process:
    """What a service's main does, in this process: it ends as on SIGTERM and can be started again."""

    def __init__(self, port):
        self.port = port

    async def start(self):
        self.server, run = await self.make()
        self.running = asyncio.create_task(run)

    async def end(self):
        self.server.end()
        await self.running


class ModelProcess(Process):
    def __init__(self, port, make_servicer, add):
        super().__init__(port)
        self.make_servicer, self.add = make_servicer, add

    async def make(self):
        server = Server(ServiceSettings(port=self.port, drain_seconds=DRAIN_SECONDS), CollectorRegistry())
        self.add(self.make_servicer(), server)
        await server.start()
        await server.set_serving(True)
        return server, server.run_until_end()


class CoordinatorProcess(Process):
    def __init__(self, port, redis_url, targets, drafts):
        super().__init__(port)
        addresses = [",".join(f"127.0.0.1:{each.port}" for each in service) for service in (targets, drafts)]
        self.settings = CoordinatorSettings(
            port=port,
            redis_url=redis_url,
            target_addresses=addresses[0],
            draft_addresses=addresses[1],
            drain_seconds=DRAIN_SECONDS,
        )

    async def make(self):
        store, registry = make_store(self.settings), CollectorRegistry()
        self.fleet = make_fleet(self.settings)
        servicer = GenerationServicer(self.settings, self.fleet, store, Metrics(registry))
        server = Server(self.settings, registry)
        generation_pb2_grpc.add_GenerationServiceServicer_to_server(servicer, server)
        await server.start()
        self.fleet.start(server.set_serving)

        async def run():
            await server.run_until_end(servicer.drain)
            await self.fleet.close()
            await store.close()

        return server, run()

    async def whole(self):
        """Wait until everybody is in use."""
        for replicas in (self.fleet.targets, self.fleet.drafts):
            await replicas.wait_for(lambda replicas=replicas: len(replicas.usable()) == 2, 30)


class Client:
    """Asks on and on, as the command does."""

    def __init__(self, number, addresses):
        self.number, self.addresses = number, addresses
        self.answers, self.waits, self.ended = [], 0, False

    def run(self):
        with Coordinators(self.addresses, insecure_channel_credentials(), (), self.waited) as coordinators:
            while not self.ended:
                events = coordinators.answer(self.request(f"{self.number}-{len(self.answers)}"), 60)
                self.answers.append([token for event in events for token in event.token_ids])

    def request(self, session_id):
        return generation_pb2.GenerateRequest(
            session_id=session_id,
            prompt="hi",
            expected_length=0,
            sampling_params=common_pb2.SamplingParams(max_new_tokens=TOKENS),
            speculation=generation_pb2.SpeculationParams(gamma=GAMMAS[self.number]),
        )

    def waited(self, failure, pause):
        self.waits += 1


@pytest.fixture
def processes(redis_url, monkeypatch):
    monkeypatch.setattr(telemetry, "shutdown", lambda: None)  # the tracing is this process's
    with ExitStack() as stack:
        ports = iter([stack.enter_context(holding_port()) for _ in range(6)])
        targets, drafts = (
            [ModelProcess(next(ports), make, add) for _ in range(2)]
            for make, add in (
                (SlowTarget, target_pb2_grpc.add_TargetServiceServicer_to_server),
                (FakeDraft, draft_pb2_grpc.add_DraftServiceServicer_to_server),
            )
        )
        coordinators = [CoordinatorProcess(next(ports), redis_url, targets, drafts) for _ in range(2)]
        yield [*targets, *drafts], coordinators


async def test_a_rolling_restart_of_everything_under_load_loses_nothing(processes):
    models, coordinators = processes
    for each in [*models, *coordinators]:
        await each.start()
    addresses = [f"127.0.0.1:{each.port}" for each in coordinators]
    clients = [Client(number, addresses[:: 1 if number % 2 else -1]) for number in range(len(GAMMAS))]
    threads = [asyncio.create_task(asyncio.to_thread(client.run)) for client in clients]
    for each in [*coordinators, *models]:
        await asyncio.gather(*(coordinator.whole() for coordinator in coordinators))
        assert not any(thread.done() for thread in threads)
        await each.end()
        await each.start()
    for client in clients:
        client.ended = True
    await asyncio.gather(*threads)
    assert all(answer == continuation(b"hi", TOKENS) for client in clients for answer in client.answers)
    assert sum(client.waits for client in clients) > 0  # answers were handed over
    for each in [*coordinators, *models]:
        await each.end()
