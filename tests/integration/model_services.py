"""A draft and a target service of our own on free ports: real gRPC, caches kept and checked as designed, no model.

The target's next token is a function of all tokens before it, so that a wrong prefix shows at once.
"""

import asyncio
from collections import Counter
from contextlib import asynccontextmanager

import grpc
from prometheus_client import CollectorRegistry

from coordinator.tokenizer import ByteTokenizer
from specdec.errors import PrefixMissing
from specdec.model.fences import stale
from specdec.prefix import PrefixDigest
from specdec.serving.server import Server
from specdec.serving.settings import ServiceSettings
from specdec.v1 import common_pb2, draft_pb2, draft_pb2_grpc, target_pb2, target_pb2_grpc
from specdec.wire import fence_from_message, prefix_from_message
from tests.channels import NOTHING_AHEAD

EOS = 511


def next_token(tokens, eos_at):
    """The target's choice: a letter, or EOS at the length where the text is to end."""
    if len(tokens) == eos_at:
        return EOS
    return 97 + sum((index + 1) * token for index, token in enumerate(tokens)) % 26


def continuation(tokens, count, eos_at=10**6):
    tokens = list(tokens)
    for _ in range(count):
        tokens.append(next_token(tokens, eos_at))
    return tokens[-count:]


class FakeModel:
    """What both services do: hold sessions, check prefixes and fences, fail when told to."""

    def __init__(self, **info):
        fields = {
            "name": "fake",
            "model_fingerprint": "m1",
            "vocabulary_fingerprint": ByteTokenizer().vocabulary_fingerprint(512),
            "vocabulary_size": 512,
            "context_length": 200,
            "eos_token_ids": [EOS],
            "tokenizer": "bytes",
            "max_gamma": 16,
        }
        self.info = common_pb2.ModelInfo(**(fields | info))
        self.held = {}
        self.fences = {}
        self.calls = Counter()
        self.released = []
        self.errors = []
        self.starts = []
        self.gate = None
        self.called = asyncio.Condition()

    async def count(self, method):
        async with self.called:
            self.calls[method] += 1
            self.called.notify_all()

    async def reached(self, method, times):
        """Wait until a method was called so often."""
        async with self.called:
            await self.called.wait_for(lambda: self.calls[method] >= times)

    async def committed(self, message):
        if self.gate is not None:
            await self.gate.wait()
        if self.errors:
            raise self.errors.pop()
        prefix = prefix_from_message(message)
        if prefix.fence < self.fences.get(prefix.session_id, prefix.fence):
            raise stale(self.fences[prefix.session_id])
        self.fences[prefix.session_id] = prefix.fence
        before = self.held.get(prefix.session_id, [])[: prefix.start]
        if len(before) < prefix.start or PrefixDigest(before).digest() != prefix.prefix_digest:
            raise PrefixMissing("not held")
        self.starts.append(prefix.start)
        return [*before, *prefix.tokens]

    async def GetModelInfo(self, request, context):
        await self.count("GetModelInfo")
        return common_pb2.GetModelInfoResponse(model=self.info)

    async def Release(self, request, context):
        self.released.append((request.session_id, request.keep_length))
        await self.count("Release")
        self.fences[request.session_id] = fence_from_message(request.fence)
        if not request.keep_length:
            self.held.pop(request.session_id, None)
        return common_pb2.ReleaseResponse()


class FakeTarget(FakeModel, target_pb2_grpc.TargetServiceServicer):
    eos_at = 10**6

    async def Verify(self, request, context):
        await self.count("Verify")
        tokens = await self.committed(request.prefix)
        reused = request.prefix.start
        kept = 0
        for token in request.proposal.draft_tokens:
            if token != next_token(tokens, self.eos_at):
                break
            tokens.append(token)
            kept += 1
        self.held[request.prefix.session_id] = list(tokens)
        chosen = next_token(tokens, self.eos_at)
        wanted = request.sampling_params.HasField("logprobs")
        block = [*request.proposal.draft_tokens[:kept], chosen]
        return target_pb2.VerifyResponse(
            accept_index=kept,
            next_token=chosen,
            cached_length=len(tokens),
            reused_length=reused,
            logprobs=[common_pb2.TokenLogprobs(token_id=token, logprob=-1) for token in block] if wanted else [],
        )

    VerifyStream = Verify


class FakeDraft(FakeModel, draft_pb2_grpc.DraftServiceServicer):
    eos_at = 10**6
    right = 2  # draft tokens that are the target's own

    async def Propose(self, request, context):
        await self.count("Propose")
        tokens = await self.committed(request.prefix)
        self.held[request.prefix.session_id] = list(tokens)
        draft_tokens = (
            [
                token if index < self.right else 98 + token % 2
                for index, token in enumerate(continuation(tokens, request.gamma, self.eos_at))
            ]
            if request.gamma
            else []
        )
        one = [common_pb2.SparseDistribution(token_ids=[token], probabilities=[1.0]) for token in draft_tokens]
        return draft_pb2.ProposeResponse(
            proposal=common_pb2.Proposal(draft_tokens=draft_tokens, draft_distributions=one),
            cached_length=len(tokens),
        )

    ProposeStream = Propose


@asynccontextmanager
async def serving(servicer, port=0, host="127.0.0.1"):
    """Serve until the end of the block; gives the server."""
    server = Server(ServiceSettings(host=host, port=port), CollectorRegistry())
    if isinstance(servicer, FakeTarget):
        target_pb2_grpc.add_TargetServiceServicer_to_server(servicer, server)
    else:
        draft_pb2_grpc.add_DraftServiceServicer_to_server(servicer, server)
    await server.start()
    await server.set_serving(True)
    try:
        yield server
    finally:
        await server.stop(0)


def channel_to(server):
    return grpc.aio.insecure_channel(f"127.0.0.1:{server.port}", options=NOTHING_AHEAD)
