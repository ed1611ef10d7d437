"""Spans of this process in memory, for tests.

OpenTelemetry lets a process set its provider once, so all tests share one; each gets the spans it made itself.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter


@contextmanager
def recorded_spans() -> Iterator[InMemorySpanExporter]:
    """Give the exporter whose ``get_finished_spans()`` holds what ends between ``with`` and its end."""
    exporter = _exporter()
    exporter.clear()
    yield exporter
    exporter.clear()


@cache
def _exporter() -> InMemorySpanExporter:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    return exporter
