"""Traces, log lines and metrics of a process. Knows neither gRPC nor any service.

OpenTelemetry is set by its own ``OTEL_*`` variables and nothing else; spans are exported over OTLP/gRPC when an
endpoint is set and dropped otherwise. Only our own code makes spans: no library is instrumented, so the exporter's
channel cannot trace itself. Logs are JSON lines on stderr; neither they nor the spans hold prompt text.
"""

import logging
import os
import sys
from collections.abc import Mapping, MutableMapping
from functools import cache
from threading import Thread
from typing import Any
from wsgiref.simple_server import WSGIServer

import structlog
from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.environment_variables import (
    OTEL_EXPORTER_OTLP_ENDPOINT,
    OTEL_EXPORTER_OTLP_PROTOCOL,
    OTEL_EXPORTER_OTLP_TRACES_ENDPOINT,
    OTEL_EXPORTER_OTLP_TRACES_PROTOCOL,
)
from opentelemetry.sdk.resources import SERVICE_NAME, OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from prometheus_client import CollectorRegistry, start_http_server

logger: structlog.stdlib.BoundLogger = structlog.stdlib.get_logger(__name__)


def configure(service_name: str, log_level: str = "info") -> TracerProvider:
    """Set up logs and traces of this process. Call it once, before anything else.

    Args:
        service_name: what spans are labelled with, unless OTEL_SERVICE_NAME or OTEL_RESOURCE_ATTRIBUTES say otherwise.
        log_level: least severe lines to write.

    Returns:
        The tracer provider, so that a test can add a span processor.
    """
    _configure_logs(service_name, log_level)
    named = Resource({SERVICE_NAME: service_name}).merge(OTELResourceDetector().detect())
    provider = TracerProvider(resource=Resource.create(named.attributes))
    if wants_export():
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    return provider


def shutdown() -> None:
    """Export what is left and stop. Blocks up to OTEL_EXPORTER_OTLP_TIMEOUT (10 s) when the collector is away."""
    provider = trace.get_tracer_provider()
    if isinstance(provider, TracerProvider):
        provider.shutdown()


@cache
def tracer() -> trace.Tracer:
    """Return the tracer that all our spans come from. To look it up costs half a span."""
    return trace.get_tracer("specdec")


def inject() -> dict[str, str]:
    """Return the current trace context (W3C ``traceparent`` unless OTEL_PROPAGATORS differs), keys in lower case."""
    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    return {key.lower(): value for key, value in carrier.items()}


def extract(carrier: Mapping[str, str]) -> Context:
    """Return the trace context that came with a call; an empty one when there is none."""
    return propagate.extract(carrier, Context())


def name_session(session_id: str) -> None:
    """Name a session in the log lines of this task, and of the tasks that it starts from now on."""
    structlog.contextvars.bind_contextvars(session=session_id)


class MetricsServer:
    """Serves a registry to Prometheus over HTTP until closed.

    Attributes:
        port: where it listens.
    """

    def __init__(self, server: WSGIServer, thread: Thread) -> None:
        self.port = server.server_port
        self._server = server
        self._thread = thread

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def start_metrics(host: str, port: int, registry: CollectorRegistry) -> MetricsServer:
    """Serve the registry on ``/metrics``.

    Args:
        host: address to listen on.
        port: 0 takes any free one.
        registry: what to serve.

    Raises:
        OSError: the port is taken.
    """
    return MetricsServer(*start_http_server(port, host, registry))


def wants_export() -> bool:
    """Say whether the OTEL variables ask for an export that there is; warn when they ask for another."""
    endpoints = (OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_EXPORTER_OTLP_TRACES_ENDPOINT)
    exporter = os.environ.get("OTEL_TRACES_EXPORTER", "otlp")
    if exporter == "none" or not any(os.environ.get(name) for name in endpoints):
        return False
    general = os.environ.get(OTEL_EXPORTER_OTLP_PROTOCOL, "grpc")
    protocol = os.environ.get(OTEL_EXPORTER_OTLP_TRACES_PROTOCOL, general)
    if (exporter, protocol) == ("otlp", "grpc"):
        return True
    logger.warning("spans are not exported: only otlp over grpc is there", exporter=exporter, protocol=protocol)
    return False


def _configure_logs(service_name: str, level: str) -> None:
    def label(_: Any, __: str, event: MutableMapping[str, Any]) -> Mapping[str, Any]:
        event["service"] = service_name
        return event

    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        label,
        _add_span,
        structlog.processors.format_exc_info,  # frames and message, never the values of variables
    ]
    handler = logging.StreamHandler(sys.stderr)
    render: list[structlog.typing.Processor] = [
        structlog.stdlib.ProcessorFormatter.remove_processors_meta,
        structlog.processors.JSONRenderer(),
    ]
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(foreign_pre_chain=shared, processors=render))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.captureWarnings(capture=True)
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
    )


def _add_span(_: Any, __: str, event: MutableMapping[str, Any]) -> Mapping[str, Any]:
    context = trace.get_current_span().get_span_context()
    if context.is_valid:
        event["trace_id"] = trace.format_trace_id(context.trace_id)
        event["span_id"] = trace.format_span_id(context.span_id)
    return event
