"""Spans of this process in memory, for tests.

OpenTelemetry lets a process set its provider once, so all tests share one; each gets the spans it made itself.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter


@dataclass(frozen=True)
class RecordedSpans:
    """The spans that started at a time or later: a server may end its span after the caller has the answer."""

    exporter: InMemorySpanExporter
    since_ns: int

    def get_finished_spans(self) -> tuple[ReadableSpan, ...]:
        return tuple(span for span in self.exporter.get_finished_spans() if span.start_time >= self.since_ns)


@contextmanager
def recorded_spans() -> Iterator[RecordedSpans]:
    """Give the record whose ``get_finished_spans()`` holds what starts and ends between ``with`` and its end."""
    exporter = _exporter()
    exporter.clear()
    yield RecordedSpans(exporter, time.time_ns())
    exporter.clear()


@cache
def _exporter() -> InMemorySpanExporter:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    return exporter
