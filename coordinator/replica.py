"""One replica of a model service: what it serves, and whether calls get through to it."""

import asyncio
import secrets
from dataclasses import dataclass
from typing import Any

import grpc

from specdec.fence import Fence
from specdec.serving.status import from_rpc_error
from specdec.v1 import common_pb2
from specdec.wire import fence_to_message

INFO_TIMEOUT_SECONDS = 5.0
RETRY_SECONDS = 0.5
TRIES_UNSAID = 10
LONGEST_RETRY_SECONDS = 30.0  # no longer: a restart is noticed after it at the latest


@dataclass(slots=True)
class Replica:
    """One address of a model service.

    Attributes:
        address: host:port.
        channel: to it.
        stub: the generated stub over the channel.
        model: what it serves; None while it does not answer.
        refusal: why what it serves is not used; empty when it is, None while that is not decided.
        failures: calls that have failed in a row, as they do when it is gone, hangs or is broken.
        following: the task that follows it.
        tries_unsaid: failed tries until the log says that it is away: many at first, one once it has answered.
        trouble: what the log has said last of why it is away or cannot be used.
    """

    address: str
    channel: grpc.aio.Channel
    stub: Any
    model: common_pb2.ModelInfo | None = None
    refusal: str | None = None
    failures: int = 0
    following: asyncio.Task[None] | None = None
    tries_unsaid: int = TRIES_UNSAID
    trouble: str = ""

    @property
    def usable(self) -> bool:
        """Whether calls may go to it."""
        return self.model is not None and self.refusal == ""

    @property
    def has_no_vocabulary(self) -> bool:
        """Whether it is a draft that knows only tokens it was shown: it fits any target, and may know nothing."""
        model = self.model
        return model is not None and not (model.vocabulary_size or model.vocabulary_fingerprint)

    @property
    def pause(self) -> float:
        """Seconds to leave it alone: none after one failure, which a cut connection explains; then ever more."""
        if self.failures < 2:
            return 0.0
        return min(RETRY_SECONDS * 2.0 ** min(self.failures - 2, 16), LONGEST_RETRY_SECONDS)

    async def ask_model(self, patience: float) -> common_pb2.ModelInfo:
        """Ask what it serves; if its calls have failed, once a call gets through to its model again. Never traced.

        Args:
            patience: seconds that the model may let a call wait.

        Raises:
            SpecdecError: it does not answer.
        """
        try:
            if self.failures:
                await self._probe(patience)
            response = await self.stub.GetModelInfo(common_pb2.GetModelInfoRequest(), timeout=INFO_TIMEOUT_SECONDS)
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from error
        model: common_pb2.ModelInfo = response.model
        return model

    async def _probe(self, patience: float) -> None:
        """Make a call that waits its turn with the model, as those of sessions do, and changes nothing.

        A process whose model hangs goes on to say that it is well.
        """
        fence = fence_to_message(Fence(1, secrets.token_hex(16)))
        nobodys = common_pb2.ReleaseRequest(session_id=secrets.token_hex(16), fence=fence)
        await self.stub.Release(nobodys, timeout=patience)
