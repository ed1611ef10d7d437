"""Spans of this process in memory, for tests.

OpenTelemetry lets a process set its provider once, so all tests share one; each gets the spans it made itself.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor, TracerProvider


class RecordedSpans:
    """The spans that start in the record: a server may end an earlier one late, after its caller has the answer."""

    def __init__(self) -> None:
        self._started: set[int] = set()
        self._finished: list[ReadableSpan] = []

    def start(self, span: ReadableSpan) -> None:
        self._started.add(span.get_span_context().span_id)

    def finish(self, span: ReadableSpan) -> None:
        if span.get_span_context().span_id in self._started:
            self._finished.append(span)

    def get_finished_spans(self) -> tuple[ReadableSpan, ...]:
        return tuple(self._finished)


@contextmanager
def recorded_spans() -> Iterator[RecordedSpans]:
    """Give the record whose ``get_finished_spans()`` holds what starts and ends between ``with`` and its end."""
    recorder = _recorder()
    recorder.record = record = RecordedSpans()
    try:
        yield record
    finally:
        recorder.record = None


class _Recorder(SpanProcessor):
    """Tells of spans in their order, whatever the clock says: it may be set meanwhile."""

    record: RecordedSpans | None = None

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        if record := self.record:
            record.start(span)

    def on_end(self, span: ReadableSpan) -> None:
        if record := self.record:
            record.finish(span)


@cache
def _recorder() -> _Recorder:
    recorder = _Recorder()
    provider = TracerProvider()
    provider.add_span_processor(recorder)
    trace.set_tracer_provider(provider)
    return recorder
