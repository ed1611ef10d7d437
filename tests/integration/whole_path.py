"""A client of the whole path in this process, which checks what holds for every stream."""

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from specdec.serving.status import from_rpc_error
from specdec.v1 import common_pb2, generation_pb2
from tests.in_process import ModelServer, serving_draft, serving_target
from tests.integration.coordinator_process import Coordinator, coordinating

TOKEN, BLOCK, COUPLED = (
    common_pb2.VERIFICATION_TOKEN,
    common_pb2.VERIFICATION_BLOCK,
    common_pb2.VERIFICATION_COUPLED,
)
STOP, LENGTH = generation_pb2.FINISH_REASON_STOP, generation_pb2.FINISH_REASON_LENGTH
SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
SECONDS = 60


@dataclass(frozen=True, slots=True)
class Answered:
    """An answer as its client got it."""

    events: list[generation_pb2.GenerateResponse]

    @property
    def tokens(self):
        return [token for event in self.events for token in event.token_ids]

    @property
    def text(self):
        return "".join(event.text for event in self.events)

    @property
    def sources(self):
        return [source for event in self.events for source in event.sources]

    @property
    def logprobs(self):
        return [each for event in self.events for each in event.logprobs]

    @property
    def rounds(self):
        return [(event.round.gamma, event.round.accept_index) for event in self.events]

    @property
    def fallbacks(self):
        return [event.round.fallback for event in self.events]

    @property
    def last(self):
        return self.events[-1]

    @property
    def usage(self):
        return self.last.usage


@dataclass(frozen=True, slots=True)
class WholePath:
    """A coordinator with its client, and the model servers behind it."""

    coordinator: Coordinator
    target: ModelServer
    draft: ModelServer

    async def events(self, **request):
        """Give the events of an answer as they come."""
        call = self.coordinator.stub.Generate(generation_pb2.GenerateRequest(**request), timeout=SECONDS)
        index = request.get("resume_from", 0)
        try:
            async for event in call:
                assert not event.token_ids or event.index == index
                assert len(event.token_ids) == len(event.sources)
                assert "".join(event.token_texts) == event.text or not event.token_ids
                index += len(event.token_ids)
                yield event
        finally:
            call.cancel()

    async def answer(self, **request):
        """Return an answer that comes to its end."""
        events = [event async for event in self.events(**request)]
        assert [bool(event.finish_reason) for event in events] == [False] * (len(events) - 1) + [True]
        return Answered(events)

    async def failure(self, **request):
        """Return what an answer that fails has shown, and why it failed."""
        events = []
        try:
            async for event in self.events(**request):
                events.append(event)
        except grpc.aio.AioRpcError as error:
            assert not any(event.finish_reason for event in events)
            return Answered(events), from_rpc_error(error)
        raise AssertionError(f"answered: {events}")

    async def answers(self, requests):
        """Return the answers to requests that run at once."""
        return await asyncio.gather(*(self.answer(**request) for request in requests))

    async def session(self, session_id):
        """Look at a session."""
        return await self.coordinator.stub.GetSession(generation_pb2.GetSessionRequest(session_id=session_id))

    async def health(self):
        """Return what the coordinator says of its health now."""
        stub = health_pb2_grpc.HealthStub(self.coordinator.channel)
        return (await stub.Check(health_pb2.HealthCheckRequest(), timeout=SECONDS)).status

    async def caches_released(self):
        """Wait until the finished answers have let their caches go."""
        await asyncio.gather(*self.coordinator.servicer._releasing)


@asynccontextmanager
async def whole_path(redis_url, target, draft, **settings):
    """Wire running model servers to a coordinator that has both."""
    async with coordinating(redis_url, [target.address], [draft.address], **settings) as coordinator:
        await coordinator.fleet.drafts.wait_for(coordinator.fleet.drafts.usable, 30)
        await coordinator.health(SERVING)
        yield WholePath(coordinator, target, draft)


@asynccontextmanager
async def whole_path_of(redis_url, target, draft, *, dtype="auto"):
    """Serve two models by name, and the path through them."""
    async with (
        serving_target(target, dtype=dtype) as target_server,
        serving_draft(draft, dtype=dtype) as draft_server,
        whole_path(redis_url, target_server, draft_server) as path,
    ):
        yield path
