"""The gRPC server of a process: health, reflection, limits, and an orderly end.

A service's main makes a ``Server`` inside the running loop, adds its servicer to it with the generated
``add_…_to_server(servicer, server)``, calls ``end_on_signals``, and awaits ``start`` (the port is open, health
says NOT_SERVING), ``set_serving(True)`` (the model is loaded) and ``run_until_end``, which may also begin before that.
"""

import asyncio
import inspect
import os
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import FrameType
from typing import Any

import grpc
import structlog
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from prometheus_client import CollectorRegistry

from specdec.serving import telemetry
from specdec.serving.health import Health
from specdec.serving.interceptor import CallInterceptor
from specdec.serving.reading import anything_goes
from specdec.serving.settings import ServiceSettings
from specdec.serving.tls import server_credentials
from specdec.serving.watches import WatchInterceptor

MAX_MESSAGE_BYTES = 16 * 2**20
LETTING_GO_SECONDS = 5.0

_MESSAGE_LIMITS = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
)
# A peer that vanished without a word is noticed within 40 seconds, during a long forward pass too.
_KEEPALIVE = (
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),
)

CHANNEL_OPTIONS = (*_MESSAGE_LIMITS, *_KEEPALIVE, ("grpc.http2.max_pings_without_data", 0))
"""What a client of these servers opens its channel with."""

SERVER_OPTIONS = (
    *_MESSAGE_LIMITS,
    *_KEEPALIVE,
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 20_000),  # below the clients' 30 s, or they are sent away
    ("grpc.so_reuseport", 0),  # a second server on the port must fail, not share it
)

LIVENESS = "liveness"
"""Name in health that is SERVING from ``start`` to the end, for whoever starts again what no longer answers.

Whether calls can be answered, which may hang on another process, and a drain are no reasons to start anew.
"""

_STATUS = health_pb2.HealthCheckResponse
_SIGNALS = (signal.SIGTERM, signal.SIGINT)

logger: structlog.stdlib.BoundLogger = structlog.stdlib.get_logger(__name__)


def _leave(number: int, _: FrameType | None) -> None:
    """End the process with the status that a shell gives to those whom a signal has ended.

    By ``os._exit``, not by the signal: that one would not end the first process of a container.
    """
    os._exit(128 + number)


async def _nothing() -> None:
    """Drain a service that holds nothing."""


class Server:
    """Serves what the generated ``add_…_to_server(servicer, server)`` functions add.

    Attributes:
        port: where it listens for calls, from ``start`` on.
        metrics_port: where it listens for Prometheus, 0 for nowhere, from ``start`` on.
        health_port: where it listens for probes of health in plaintext, 0 for nowhere, from ``start`` on.
    """

    def __init__(
        self,
        settings: ServiceSettings,
        registry: CollectorRegistry,
        *,
        max_request_bytes: int = MAX_MESSAGE_BYTES,
        check: Callable[[Any], None] = anything_goes,
    ) -> None:
        """Make a server; inside the running event loop, whose it is.

        Args:
            settings: host, ports, TLS and seconds to drain.
            registry: what Prometheus gets to see.
            max_request_bytes: a larger request is refused unread, with RESOURCE_EXHAUSTED.
            check: raises InvalidParameter for a request to be refused as it is read.
        """
        self.port = 0
        self.metrics_port = 0
        self.health_port = 0
        self._settings = settings
        self._registry = registry
        self._watches = WatchInterceptor()
        self._calls = CallInterceptor(check)
        options = {**dict(SERVER_OPTIONS), "grpc.max_receive_message_length": max_request_bytes}
        self._grpc = grpc.aio.server(interceptors=(self._watches, self._calls), options=tuple(options.items()))
        self._health = Health()
        self._metrics: telemetry.MetricsServer | None = None
        self._probed: grpc.aio.Server | None = None
        self._services = [""]  # the empty name is the whole server's
        self._serving = False
        self._ending = asyncio.Event()
        self._draining = False

    def add_generic_rpc_handlers(self, handlers: Sequence[Any]) -> None:
        """Take a servicer in; called by the generated code."""
        self._grpc.add_generic_rpc_handlers(handlers)

    def add_registered_method_handlers(self, service_name: str, handlers: Mapping[str, Any]) -> None:
        """Take a servicer's methods in; called by the generated code.

        Raises:
            TypeError: a method is neither a coroutine function nor an async generator function.
        """
        for name, handler in handlers.items():
            answers_one = inspect.iscoroutinefunction(handler.unary_unary or handler.stream_stream)
            if not (answers_one or inspect.isasyncgenfunction(handler.unary_stream)):
                raise TypeError(f"{service_name}/{name} must be a coroutine or an async generator function")
        self._grpc.add_registered_method_handlers(service_name, handlers)
        self._services.append(service_name)

    async def start(self) -> None:
        """Open the ports; health answers NOT_SERVING until ``set_serving``.

        Raises:
            RuntimeError: the port for calls or for health is taken.
            OSError: the port for metrics is taken.
        """
        self._tell_health()
        self._health.tell(LIVENESS, _STATUS.SERVING)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._grpc)
        if self._settings.reflection:
            plumbing = (health.SERVICE_NAME, reflection.SERVICE_NAME)
            reflection.enable_server_reflection((*self._services[1:], *plumbing), self._grpc)
        files = self._settings.tls_certificate, self._settings.tls_key, self._settings.tls_client_ca
        self.port = self._grpc.add_secure_port(self._address(self._settings.port), server_credentials(*files))
        if self._settings.metrics_port != 0:
            port = max(self._settings.metrics_port, 0)  # -1 asks for any free one
            self._metrics = telemetry.start_metrics(self._settings.host, port, self._registry)
            self.metrics_port = self._metrics.port
        if self._settings.health_port != 0:
            await self._start_probed()
        await self._grpc.start()
        ports = {"port": self.port, "metrics_port": self.metrics_port, "health_port": self.health_port}
        logger.info("listening", tls=bool(self._settings.tls_certificate), **ports)

    async def _start_probed(self) -> None:
        """Open the port for health alone: probes of Kubernetes can show neither certificate nor token."""
        self._probed = grpc.aio.server(interceptors=(self._watches,), options=SERVER_OPTIONS)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._probed)
        self.health_port = self._probed.add_insecure_port(self._address(max(self._settings.health_port, 0)))
        await self._probed.start()

    def _address(self, port: int) -> str:
        host = self._settings.host
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    async def set_serving(self, serving: bool) -> None:  # noqa: FBT001  # the state itself
        """Say in health, for every service and the empty name, whether calls can be answered; log each change.

        Ignored once the server drains.
        """
        if self._draining or serving == self._serving:
            return
        self._serving = serving
        self._tell_health()
        logger.info("serving" if serving else "not serving", port=self.port, metrics_port=self.metrics_port)

    def _tell_health(self) -> None:
        for name in self._services:
            self._health.tell(name, _STATUS.SERVING if self._serving and not self._draining else _STATUS.NOT_SERVING)

    def end(self) -> None:
        """End in order."""
        self._ending.set()

    def end_on_signals(self) -> None:
        """Let SIGTERM and SIGINT end it in order from now on, and a second one the process at once; in the main thread.

        For a process whose only server this is: the handlers stay. Python's own for SIGINT raises an error wherever the
        main thread happens to be, in the midst of the event loop's or gRPC's machine code, too: that is a crash.
        """
        loop = asyncio.get_running_loop()

        def end(number: int, frame: FrameType | None) -> None:
            for each in _SIGNALS:
                signal.signal(each, _leave)
            if loop.is_closed():
                _leave(number, frame)
            loop.call_soon_threadsafe(self.end)

        for number in _SIGNALS:
            signal.signal(number, end)

    async def run_until_end(self, drain: Callable[[], Awaitable[None]] = _nothing) -> None:
        """Wait for ``end``, and end in order.

        Health turns NOT_SERVING for good, then ``drain`` runs while calls are still taken, then new connections are
        refused and running calls get the rest of ``drain_seconds``, then the last spans are exported.

        Args:
            drain: ends what the service must hand over or refuse from now on.
        """
        loop = asyncio.get_running_loop()
        await self._ending.wait()
        deadline = loop.time() + self._settings.drain_seconds
        logger.info("draining", seconds=self._settings.drain_seconds)
        self._draining = True
        self._tell_health()
        try:
            async with asyncio.timeout_at(deadline):
                await drain()
        except TimeoutError:
            logger.warning("drain took too long")
        finally:
            await self.stop(max(0.0, deadline - loop.time()))
            await asyncio.to_thread(telemetry.shutdown)

    async def stop(self, grace: float) -> None:
        """Close the ports, give running calls ``grace`` seconds and cancel what is left then. Call it once.

        Watches of health, streams of reflection, and streams that wait for a request are ended, not waited for.
        """
        self._watches.closing.set()
        self._calls.close_streams()
        await self._grpc.stop(grace)
        try:  # handlers cancelled now still have to let go of what they hold
            async with asyncio.timeout(LETTING_GO_SECONDS):
                await self._calls.idle.wait()
        except TimeoutError:
            logger.warning("calls did not end when cancelled")
        if self._metrics is not None:
            await asyncio.to_thread(self._metrics.close)
        if self._probed is not None:
            await self._probed.stop(0)
        logger.info("stopped")
