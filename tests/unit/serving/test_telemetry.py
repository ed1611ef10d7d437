"""Trace context through metadata, and when spans are exported."""

import urllib.request

import pytest
from opentelemetry import context, trace
from opentelemetry.sdk.trace import TracerProvider
from prometheus_client import CollectorRegistry, Counter

from specdec.serving import names, telemetry

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
VARIABLES = (
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    "OTEL_EXPORTER_OTLP_PROTOCOL",
    "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL",
    "OTEL_TRACES_EXPORTER",
)


def test_context_survives_its_carrier():
    span = TracerProvider().get_tracer("test").start_span("a")
    token = context.attach(trace.set_span_in_context(span))
    try:
        carrier = telemetry.inject()
    finally:
        context.detach(token)
    assert list(carrier) == ["traceparent"]
    got = trace.get_current_span(telemetry.extract(carrier)).get_span_context()
    assert (got.trace_id, got.span_id) == (span.get_span_context().trace_id, span.get_span_context().span_id)
    assert got.is_remote


def test_carrier_without_or_with_broken_context_starts_a_new_trace():
    outer = trace.NonRecordingSpan(trace.SpanContext(1, 2, is_remote=False))
    token = context.attach(trace.set_span_in_context(outer))
    try:  # whatever is current here must not become the parent of somebody's call
        for carrier in ({}, {"traceparent": "nonsense"}):
            assert not trace.get_current_span(telemetry.extract(carrier)).get_span_context().is_valid
    finally:
        context.detach(token)


@pytest.mark.parametrize(
    ("environment", "wanted"),
    [
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://a:4317"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://a:4317"}, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://a:4317", "OTEL_TRACES_EXPORTER": "none"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://a:4317", "OTEL_TRACES_EXPORTER": "otlp"}, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://a:4318", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}, False),
        (
            {
                "OTEL_EXPORTER_OTLP_ENDPOINT": "http://a:4317",
                "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
                "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "grpc",
            },
            True,
        ),
    ],
)
def test_export_is_decided_by_otel_variables(environment, wanted, monkeypatch):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert telemetry.wants_export() is wanted


def test_metrics_server_serves_its_registry_and_closes():
    registry = CollectorRegistry()
    Counter("rounds", "Rounds.", registry=registry).inc(2)
    server = telemetry.start_metrics("127.0.0.1", 0, registry)
    url = f"http://127.0.0.1:{server.port}/metrics"
    assert "rounds_total 2.0" in urllib.request.urlopen(url, timeout=30).read().decode().splitlines()
    with pytest.raises(OSError, match="in use"):
        telemetry.start_metrics("127.0.0.1", server.port, registry)
    server.close()
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(url, timeout=30)


def test_names_are_used_once():
    values = [value for name, value in vars(names).items() if name.isupper()]
    assert len(values) == len(set(values))
