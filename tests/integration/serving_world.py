"""A server with a draft and a generation service of our own, on a free port, and a caller beside it."""

import asyncio

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from opentelemetry import trace
from prometheus_client import CollectorRegistry

from specdec import errors
from specdec.errors import PrefixMissing, SpecdecError
from specdec.serving.calls import CallStream, call
from specdec.serving.server import CHANNEL_OPTIONS, Server
from specdec.serving.settings import ServiceSettings
from specdec.v1 import common_pb2, draft_pb2, draft_pb2_grpc, generation_pb2, generation_pb2_grpc

PROPOSE = "specdec.v1.DraftService/Propose"
ALL_ERRORS = [each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, SpecdecError)]


class Draft(draft_pb2_grpc.DraftServiceServicer):
    """Does in Propose what the test puts into ``behave``."""

    def __init__(self):
        self.entered = asyncio.Event()
        self.ended = asyncio.Event()

    async def behave(self, request, context):
        return draft_pb2.ProposeResponse(cached_length=len(request.prefix.tokens))

    async def Propose(self, request, context):
        self.entered.set()
        try:
            return await self.behave(request, context)
        finally:
            self.ended.set()

    ProposeStream = Propose

    async def Release(self, request, context):
        return common_pb2.ReleaseResponse()

    async def GetModelInfo(self, request, context):
        return common_pb2.GetModelInfoResponse()


class Generation(generation_pb2_grpc.GenerationServiceServicer):
    """Streams events for ever, in text as long as the prompt; or fails after one when the prompt is empty."""

    def __init__(self):
        self.ended = asyncio.Event()
        self.how = None

    async def Generate(self, request, context):
        span = trace.get_current_span()
        try:
            for index in range(10**9):
                span.set_attribute("specdec.rounds", index)
                yield generation_pb2.GenerateResponse(text=request.prompt)
                assert trace.get_current_span() is span
                if not request.prompt:
                    raise PrefixMissing("gone")
        except BaseException as error:
            self.how = type(error)
            raise
        finally:
            self.ended.set()

    async def GetSession(self, request, context):
        return generation_pb2.GetSessionResponse()

    async def DeleteSession(self, request, context):
        return generation_pb2.DeleteSessionResponse()

    async def GetModelInfo(self, request, context):
        return common_pb2.GetModelInfoResponse()


class World:
    """A started server with both services, and a channel to it."""

    def __init__(self, metrics_port=0, port=0):
        self.stopped = False
        self.registry = CollectorRegistry()
        self.server = Server(ServiceSettings(port=port, metrics_port=metrics_port), self.registry)
        self.draft, self.generation = Draft(), Generation()
        draft_pb2_grpc.add_DraftServiceServicer_to_server(self.draft, self.server)
        generation_pb2_grpc.add_GenerationServiceServicer_to_server(self.generation, self.server)

    async def __aenter__(self):
        await self.server.start()
        self.address = f"127.0.0.1:{self.server.port}"
        self.channel = grpc.aio.insecure_channel(self.address, options=CHANNEL_OPTIONS)
        self.drafts = draft_pb2_grpc.DraftServiceStub(self.channel)
        self.generations = generation_pb2_grpc.GenerationServiceStub(self.channel)
        self.health = health_pb2_grpc.HealthStub(self.channel)
        return self

    async def __aexit__(self, *_):
        await self.channel.close()
        if not self.stopped:
            await self.stop(0)

    async def stop(self, grace):
        self.stopped = True
        await self.server.stop(grace)

    async def idle(self):
        """Wait until no call runs: each has ended its span, which may be after its caller has the answer."""
        await self.server._calls.idle.wait()

    async def propose(self, request=None, timeout=30.0):
        request = request or draft_pb2.ProposeRequest()
        return await call(self.drafts.Propose, PROPOSE, request, timeout=timeout, address=self.address)

    def stream(self):
        return CallStream(self.drafts.ProposeStream, f"{PROPOSE}Stream", self.address)

    async def check(self, service=""):
        return (await self.health.Check(health_pb2.HealthCheckRequest(service=service), timeout=30)).status


def raising(error):
    async def behave(request, context):
        raise error

    return behave


async def waiting(request, context):
    await asyncio.Event().wait()


def by_kind(spans, kind):
    [span] = [each for each in spans.get_finished_spans() if each.kind is kind]
    return span


def deadlines():
    """Give seconds for a call that is to run into its deadline: longer ones while it has not reached its handler."""
    return (0.2 * 3**attempt for attempt in range(5))


async def until(condition):
    """Wait for what nobody announces; the test's time limit ends what does not come about."""
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0)
