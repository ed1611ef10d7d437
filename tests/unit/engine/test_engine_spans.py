"""The forward span: one a batched pass, linked to every caller's span, child of none."""

import asyncio

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from specdec.model import batching
from tests.unit.engine.hash_model import Gate, HashModel, Running, VerifyWork, prefix_of, raises
from tests.unit.engine.test_together import arrived, submitted


@pytest.fixture
def spans(monkeypatch):
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(batching, "_tracer", provider.get_tracer("test"))
    yield provider.get_tracer("test"), exporter
    provider.shutdown()


async def test_pass_links_to_every_session_in_it(spans):
    tracer, exporter = spans
    model = HashModel()
    gate = Gate(model)

    async def call(engine, name):
        with tracer.start_as_current_span(name) as span:
            await engine.run(VerifyWork(prefix_of([1, 2], name)))
            return span.get_span_context().span_id

    async with Running(model) as engine:
        first = await submitted(call(engine, "first"))
        await arrived(gate)
        others = await submitted(call(engine, "a"), call(engine, "b"))
        gate.open()
        ids = await asyncio.gather(*first, *others)
    forward = [span for span in exporter.get_finished_spans() if span.name == "forward"]
    assert [[link.context.span_id for link in span.links] for span in forward] == [ids[:1], ids[1:]]
    for span, size in zip(forward, (1, 2), strict=True):
        assert span.kind is SpanKind.INTERNAL
        assert span.parent is None
        assert span.attributes == {"specdec.batch_size": size, "specdec.fed_tokens": 2 * size}


async def test_failed_pass_is_an_error_span(spans):
    tracer, exporter = spans
    model = HashModel()
    model.before_pass = lambda: raises(RuntimeError("no"))(None)
    async with Running(model) as engine:
        with tracer.start_as_current_span("call"):
            await asyncio.gather(engine.run(VerifyWork(prefix_of([1]))), return_exceptions=True)
    forward = next(span for span in exporter.get_finished_spans() if span.name == "forward")
    assert forward.status.status_code is StatusCode.ERROR


async def test_calls_without_a_span_make_none(spans):
    _, exporter = spans
    async with Running(HashModel()) as engine:
        await engine.run(VerifyWork(prefix_of([1])))
    assert exporter.get_finished_spans() == ()
