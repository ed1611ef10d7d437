"""Model servers that are nothing but what their health says, watch after watch, and a fleet that follows them."""

import asyncio
from contextlib import asynccontextmanager
from itertools import repeat

import grpc
from grpc_health.v1 import health_pb2

from coordinator.fleet import Fleet
from coordinator.replicas import Replicas
from coordinator.tokenizer import ByteTokenizer
from specdec.v1 import common_pb2

SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


def broken(details):
    return grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata(), grpc.aio.Metadata(), details=details)


REFUSED = broken("Connection refused")


def model(**fields):
    known = {"name": "m", "model_fingerprint": "m", "tokenizer": "bytes", "vocabulary_size": 300}
    return common_pb2.ModelInfo(vocabulary_fingerprint=ByteTokenizer().vocabulary_fingerprint(300), **(known | fields))


class Watched:
    """A channel, and the stub over it. Each watch gives its statuses, then breaks; after the last one nothing comes."""

    def __init__(self, *watches, info=None, errors=None):
        self.errors = errors or repeat(REFUSED)
        self.watches, self.info, self.done = list(watches), info or model(), asyncio.Event()

    def unary_stream(self, *_, **__):
        return lambda _: Watch(self)

    unary_unary = unary_stream

    async def GetModelInfo(self, *_, **__):
        return common_pb2.GetModelInfoResponse(model=self.info)

    async def close(self):
        pass


class Watch:
    def __init__(self, watched):
        self.watched = watched

    async def __aiter__(self):
        watched = self.watched
        if watched.watches:
            for status in watched.watches.pop(0):
                yield health_pb2.HealthCheckResponse(status=status)
            if watched.watches:
                raise next(watched.errors)
        watched.done.set()
        await asyncio.Event().wait()

    def cancel(self):
        pass


@asynccontextmanager
async def followed(target, draft):
    """Follow both until their watches are through."""
    channels = {"target:1": target, "draft:1": draft}

    def replicas(service):
        return Replicas(service, lambda channel: channel, [f"{service}:1"], lambda place, _: channels[place], silence=1)

    fleet = Fleet(replicas("target"), replicas("draft"), tokenizer="bytes", max_gamma=4, max_new_tokens=16)

    async def set_serving(_):
        pass

    fleet.start(set_serving)
    try:
        async with asyncio.timeout(30):
            await asyncio.gather(target.done.wait(), draft.done.wait())
        yield fleet
    finally:
        await fleet.close()
