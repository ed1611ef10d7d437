"""What the draft and the target process have in common: settings, loading, release, model info, an orderly end.

Life of a process: the port opens at once and answers NOT_READY; the model loads and is warmed up on a thread; health
turns SERVING; SIGTERM lets running calls end, and does not wait for a model that is still loading. An engine that has
broken ends the process, too, for another to be started.

The coordinator never imports this module: it would bring torch.
"""

import asyncio
import os
from typing import Annotated, Any, Literal, Protocol

import structlog
from opentelemetry import trace
from prometheus_client import CollectorRegistry, Gauge
from pydantic import Field

from specdec.errors import InvalidParameter, NotReady
from specdec.model.engine import Advance, Answer, Engine, EngineLimits
from specdec.model.language_model import LanguageModel, Segment
from specdec.model.loading import load_model, load_share
from specdec.model.ranks import ALONE, Ranks
from specdec.model.refusal import ModelRefused
from specdec.model.tensor_parallel import LeadingModel
from specdec.serving import names, telemetry
from specdec.serving.passing_thread import on_passing_thread
from specdec.serving.server import Server
from specdec.serving.settings import ServiceSettings
from specdec.v1 import common_pb2
from specdec.wire import check_session_id, duration, fence_from_message

RETRY_LOADING_SECONDS = 1.0

logger: structlog.stdlib.BoundLogger = structlog.stdlib.get_logger(__name__)


class ModelServerSettings(ServiceSettings):
    """What both model servers can be told."""

    model: Annotated[str, Field(min_length=1)]
    """Model to serve: owner/name[@commit], a folder, a .gguf file, embedded:smollm2, layers:N:MODEL or synthetic:…."""
    device: str = "auto"
    """Where the model runs: auto (a GPU when there is one), cpu, cuda or cuda:N."""
    dtype: str = "auto"
    """Number format: auto (float32 on a CPU, the checkpoint's on a GPU), float64, float32, bfloat16 or float16."""
    quantization: Literal["none", "auto", "float16", "int8"] = "none"
    """Linear layers on a CPU: none (as dtype says), float16, int8, auto (float16 if it can): the law is the model's."""
    max_sessions: Annotated[int, Field(ge=1)] = 64
    """Sessions whose cache is kept at most."""
    cache_tokens: Annotated[int, Field(ge=1)] = 32768
    """Tokens that all caches may take room for together: the KV budget."""
    max_batch_tokens: Annotated[int, Field(ge=2)] = 512
    """Tokens of one forward pass at most; longer prompts are fed in chunks."""
    max_queue: Annotated[int, Field(ge=1)] = 256
    """Calls that may wait; more are refused with RESOURCE_EXHAUSTED."""
    session_idle_seconds: Annotated[float, Field(ge=0)] = 300.0
    """Seconds without a call after which a session may make room for another."""
    max_gamma: Annotated[int, Field(ge=0, le=64)] = 16
    """Draft tokens a call may ask for or carry at most."""

    @property
    def engine_limits(self) -> EngineLimits:
        """What the engine may take."""
        return EngineLimits(
            max_batch_tokens=self.max_batch_tokens,
            max_sessions=self.max_sessions,
            cache_tokens=self.cache_tokens,
            max_queue=self.max_queue,
            idle_seconds=self.session_idle_seconds,
        )


class ModelServicer:
    """The calls that DraftService and TargetService share, over an engine that starts when the model is there."""

    def __init__(self, settings: ModelServerSettings, registry: CollectorRegistry) -> None:
        """Prepare to answer NOT_READY."""
        self.settings = settings
        self._registry = registry
        self._loaded: tuple[LanguageModel, Engine] | None = None

    def load(self) -> LanguageModel:
        """Load the model, off the event loop's thread.

        Raises:
            ModelRefused: it cannot be served.
        """
        return load_served_model(self.settings)

    def start(self, model: LanguageModel, advance: Advance) -> None:
        """Begin to serve a model."""
        engine = Engine(model, advance, self.settings.engine_limits)
        engine.start()
        self._loaded = model, engine
        _export(engine, self._registry)

    async def close(self) -> None:
        """Fail what is not answered."""
        if self._loaded is not None:
            await self._loaded[1].close()

    @property
    def model(self) -> LanguageModel:
        """The model.

        Raises:
            NotReady: it is still loading.
        """
        return self._ready()[0]

    @property
    def engine(self) -> Engine:
        """The engine that runs the model.

        Raises:
            NotReady: the model is still loading.
        """
        return self._ready()[1]

    def check_gamma(self, gamma: int, field: str) -> None:
        """Refuse more draft tokens than a call may have."""
        if gamma > self.settings.max_gamma:
            raise InvalidParameter(f"{field} must be at most {self.settings.max_gamma}", field=field)

    def check_length(self, prefix: common_pb2.CommittedPrefix) -> None:
        """Refuse more committed tokens than the model's context, before the work of reading them."""
        length, context = prefix.start + len(prefix.tokens), self.model.context_length
        if length > context:
            raise InvalidParameter(f"{length} tokens do not fit a context of 1 to {context}", field="prefix.tokens")

    async def Release(self, request: Any, context: Any) -> common_pb2.ReleaseResponse:  # noqa: N802, ARG002
        """Give a session's cache up."""
        session_id = check_session_id(request.session_id)
        await self.engine.release(session_id, fence_from_message(request.fence), request.keep_length)
        return common_pb2.ReleaseResponse()

    async def GetModelInfo(self, request: Any, context: Any) -> common_pb2.GetModelInfoResponse:  # noqa: N802, ARG002
        """Say what is served."""
        description = self.model.description
        return common_pb2.GetModelInfoResponse(
            model=common_pb2.ModelInfo(
                name=description.name,
                model_fingerprint=description.model_fingerprint,
                vocabulary_fingerprint=description.vocabulary_fingerprint,
                vocabulary_size=description.vocabulary_size,
                context_length=description.context_length,
                eos_token_ids=description.eos_token_ids,
                tokenizer=description.tokenizer,
                default_sampling_params=common_pb2.SamplingParams(**description.default_sampling_params),
                max_gamma=self.settings.max_gamma,
            )
        )

    def _ready(self) -> tuple[LanguageModel, Engine]:
        if self._loaded is None:
            raise NotReady("the model is loading", retry_seconds=RETRY_LOADING_SECONDS)
        return self._loaded


class AddToServer(Protocol):
    """A generated ``add_…_to_server`` function."""

    def __call__(self, servicer: Any, server: Any) -> None:
        """Register the servicer."""


async def run_model_server(
    name: str,
    settings: ModelServerSettings,
    servicer: ModelServicer,
    registry: CollectorRegistry,
    add: AddToServer,
    advance: Advance,
) -> None:
    """Run a model server until SIGTERM or SIGINT.

    Args:
        name: of the service, for logs and spans.
        settings: as read at start.
        servicer: answers the calls.
        registry: what Prometheus gets to see.
        add: registers the servicer with a server.
        advance: what the engine does after each pass.

    Raises:
        SystemExit: the model cannot be served, or no longer; the reason is logged.
    """
    telemetry.configure(name, settings.log_level)
    server = Server(settings, registry)
    add(servicer, server)
    server.end_on_signals()
    await server.start()
    running = asyncio.create_task(server.run_until_end())
    loading = asyncio.create_task(on_passing_thread(servicer.load))
    await asyncio.wait((running, loading), return_when=asyncio.FIRST_COMPLETED)
    if not loading.done():  # nothing stops a thread, and nobody needs what it brings
        await running
        os._exit(0)
    try:
        model = await loading
    except ModelRefused as refusal:
        logger.error("model refused", model=settings.model, why=str(refusal))
        server.end()
        await running
        raise SystemExit(1) from None
    servicer.start(model, advance)
    await server.set_serving(True)
    watching = asyncio.create_task(_end_when_broken(servicer.engine, server))
    await running
    watching.cancel()
    await servicer.close()
    if servicer.engine.broken.is_set():
        raise SystemExit(1)


async def _end_when_broken(engine: Engine, server: Server) -> None:
    await engine.broken.wait()
    server.end()


def answer_timings(answer: Answer) -> common_pb2.ServerTimings:
    """Write where a call's time went; also onto the current span."""
    trace.get_current_span().set_attributes(
        {
            names.CACHED_TOKENS: answer.reused_length,
            names.FED_TOKENS: answer.fed_tokens,
            names.PASSES: answer.passes,
            names.BATCH_SIZE: answer.batch_size,
            names.QUEUE_SECONDS: answer.queue_seconds,
            names.FORWARD_SECONDS: answer.forward_seconds,
            names.SAMPLING_SECONDS: answer.sampling_seconds,
        }
    )
    return common_pb2.ServerTimings(
        queue=duration(answer.queue_seconds),
        forward=duration(answer.forward_seconds),
        sampling=duration(answer.sampling_seconds),
        pass_tokens=answer.pass_tokens,
    )


def load_served_model(settings: ModelServerSettings, ranks: Ranks = ALONE) -> LanguageModel:
    """Load the model that the settings name, and warm it up.

    Args:
        settings: of the service.
        ranks: the processes that hold the model together; this one leads.

    Raises:
        ModelRefused: it cannot be served.
    """
    logger.info("loading", model=settings.model, processes=ranks.count)
    named = settings.model, settings.device, settings.dtype, settings.quantization
    model: LanguageModel
    model = load_model(*named) if ranks.count == 1 else LeadingModel(load_share(*named, ranks.count), ranks)
    model.forward([Segment(model.new_cache(), [0], 1)])  # the first pass is the slowest: nobody should wait for it
    logger.info("loaded", model=model.name, fingerprint=model.description.model_fingerprint)
    return model


def _export(engine: Engine, registry: CollectorRegistry) -> None:
    """Show the engine's state to Prometheus."""
    gauges = {
        "specdec_num_requests_waiting": ("Calls that wait for the engine.", lambda: engine.queue_length),
        "specdec_num_requests_running": ("Calls in the engine's batch.", lambda: engine.state.running),
        "specdec_sessions": ("Sessions with a cache.", lambda: engine.state.sessions),
        "specdec_kv_cache_usage_ratio": (
            "Share of the KV budget that room is set aside for.",
            lambda: engine.state.reserved_tokens / engine.limits.cache_tokens,
        ),
        "specdec_kv_cache_evictions": ("Sessions evicted since the start.", lambda: engine.state.evictions),
        "specdec_forward_passes": ("Forward passes since the start.", lambda: engine.state.passes),
        "specdec_fed_tokens": ("Tokens fed since the start.", lambda: engine.state.fed_tokens),
        "specdec_engine_heartbeat_age_seconds": ("Seconds since the engine showed life.", lambda: engine.heartbeat_age),
    }
    for name, (text, value) in gauges.items():
        Gauge(name, text, registry=registry).set_function(value)
