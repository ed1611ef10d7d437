"""The record of spans: it must not hold those that another test, or an earlier step, left to end."""

from opentelemetry import trace

from tests.recorded_spans import recorded_spans


def test_a_span_that_started_before_the_record_is_none_of_it():
    with recorded_spans():
        earlier = trace.get_tracer("test").start_span("earlier")
    with recorded_spans() as spans:
        trace.get_tracer("test").start_span("mine").end()
        earlier.end()
        [mine] = spans.get_finished_spans()
    assert mine.name == "mine"
