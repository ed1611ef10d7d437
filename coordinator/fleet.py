"""Which models answer together: one target model, and drafts that speak its vocabulary."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import structlog

from coordinator.replica import Replica
from coordinator.replicas import Replicas
from coordinator.requests import Served
from coordinator.tokenizer import Tokenizer, load_tokenizer
from specdec.errors import FingerprintMismatch, NotReady, SpecdecError
from specdec.v1 import common_pb2

logger: structlog.stdlib.BoundLogger = structlog.stdlib.get_logger(__name__)


class Fleet:
    """Admits and refuses replicas, and knows whether requests can be served.

    The first target that answers decides which model is served; replicas of another are refused while one of that model
    is there. When none is, what is there is taken: sessions of the former model are refused then, never mixed. A target
    whose vocabulary is not the tokenizer's is refused: its answers would be nonsense.

    Attributes:
        targets: replicas of the target service.
        drafts: replicas of the draft service.
    """

    def __init__(
        self, targets: Replicas, drafts: Replicas, *, tokenizer: str, max_gamma: int, max_new_tokens: int
    ) -> None:
        """Know nobody yet.

        Args:
            targets: replicas of the target service.
            drafts: replicas of the draft service.
            tokenizer: where to find the target's tokenizer; empty for where the target says.
            max_gamma: draft tokens a request may ask for.
            max_new_tokens: where neither the request nor the model says it.
        """
        self.targets = targets
        self.drafts = drafts
        self._tokenizer = tokenizer
        self._max_gamma = max_gamma
        self._max_new_tokens = max_new_tokens
        self._served: Served | None = None
        self._misfits: set[tuple[str, str]] = set()  # tokenizer, and the fingerprint of a vocabulary that is not its
        self._deciding = asyncio.Lock()

    def start(self, set_serving: Callable[[bool], Awaitable[None]]) -> None:
        """Begin to follow all replicas; ``set_serving`` hears whether requests can be served."""

        async def decide() -> None:
            async with self._deciding:
                try:
                    await self._admit_targets()
                    self._admit_drafts()
                finally:
                    await set_serving(self._problem() is None)
                    await self.targets.announce()
                    await self.drafts.announce()

        self.targets.start(decide)
        self.drafts.start(decide)

    async def close(self) -> None:
        """Follow nobody any more."""
        await self.targets.close()
        await self.drafts.close()

    async def served(self, patience: float) -> Served:
        """Return what is served, once it is.

        Args:
            patience: seconds to wait for a target that is away.

        Raises:
            NotReady: no target has answered.
            FingerprintMismatch: targets are there, and each has another vocabulary than the tokenizer; or drafts are,
                and each has another than the target.
        """
        try:
            await self.targets.wait_for(lambda: not isinstance(self._problem(), NotReady), patience)
        except TimeoutError:
            logger.debug("no target in time")
        problem = self._problem()
        if problem is not None or self._served is None:
            raise problem or _no_target()
        return self._served

    def draft_model(self) -> common_pb2.ModelInfo | None:
        """Return what the draft serves, when one has joined."""
        return next((replica.model for replica in self.drafts.usable()), None)

    async def _admit_targets(self) -> None:
        models = [replica.model for replica in self.targets.answering() if replica.model]
        if not any(self._is_served(model) for model in models):
            await self._adopt(models)
        for replica in self.targets.answering():
            if replica.model:
                _judge(replica, "target", self._target_refusal(replica.model))

    def _admit_drafts(self) -> None:
        for replica in self.drafts.answering():
            if self._served and replica.model:
                fits = replica.has_no_vocabulary or _same_vocabulary(replica.model, self._served.model)
                _judge(replica, "draft", "" if fits else f"its vocabulary is not that of {self._served.model.name}")

    async def _adopt(self, models: Sequence[common_pb2.ModelInfo]) -> None:
        """Serve the first model whose vocabulary is the tokenizer's; when there is none, what was served stays."""
        for model in models:
            if self._is_misfit(model):
                continue
            source = self._source(model)
            tokenizer, fingerprint = await asyncio.to_thread(_load, source, model.vocabulary_size)
            if fingerprint == model.vocabulary_fingerprint:
                self._served = Served(model, tokenizer, self._max_gamma, self._max_new_tokens)
                logger.info("target", model=model.name, fingerprint=model.model_fingerprint, tokenizer=source)
                return
            self._misfits.add((source, model.vocabulary_fingerprint))
            logger.error("the tokenizer is another model's", model=model.name, tokenizer=source)

    def _source(self, model: common_pb2.ModelInfo) -> str:
        return self._tokenizer or model.tokenizer

    def _is_served(self, model: common_pb2.ModelInfo) -> bool:
        return self._served is not None and _same_model(model, self._served.model)

    def _is_misfit(self, model: common_pb2.ModelInfo) -> bool:
        return (self._source(model), model.vocabulary_fingerprint) in self._misfits

    def _target_refusal(self, model: common_pb2.ModelInfo) -> str:
        if self._is_misfit(model):
            named = "COORDINATOR_TOKENIZER" if self._tokenizer else "the tokenizer that it names"
            return f"the vocabulary of {model.name} is not that of {named}"
        return "" if self._is_served(model) else "it serves another model than the other targets"

    def _problem(self) -> SpecdecError | None:
        if self._served is None or not self.targets.usable():
            models = [replica.model for replica in self.targets.answering() if replica.model]
            if models and all(self._is_misfit(model) for model in models):
                return FingerprintMismatch(f"every target is refused: {self._target_refusal(models[0])}")
            return _no_target()
        refused = [replica for replica in self.drafts.answering() if replica.refusal]
        if refused and len(refused) == len(self.drafts.answering()):
            return FingerprintMismatch(f"every draft is refused: {refused[0].refusal}")
        return None


def _load(source: str, size: int) -> tuple[Tokenizer, str]:
    """Load a tokenizer, and say what its ids [0, size) mean; both take a while."""
    tokenizer = load_tokenizer(source)
    return tokenizer, tokenizer.vocabulary_fingerprint(size)


def _no_target() -> NotReady:
    return NotReady("no target has answered", retry_seconds=1.0)


def _same_model(one: common_pb2.ModelInfo, other: common_pb2.ModelInfo) -> bool:
    return one.model_fingerprint == other.model_fingerprint


def _same_vocabulary(one: common_pb2.ModelInfo, other: common_pb2.ModelInfo) -> bool:
    return (one.vocabulary_fingerprint, one.vocabulary_size) == (other.vocabulary_fingerprint, other.vocabulary_size)


def _judge(replica: Replica, service: str, refusal: str) -> None:
    if refusal and refusal != replica.refusal:
        logger.error("replica refused", service=service, address=replica.address, why=refusal)
    elif refusal != replica.refusal:
        logger.info("replica is in use", service=service, address=replica.address)
    replica.refusal = refusal
