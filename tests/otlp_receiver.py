"""A receiver of traces over OTLP/gRPC on a free port, for tests, and a way to read what it got."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Self

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span


class OtlpReceiver(trace_service_pb2_grpc.TraceServiceServicer):
    """Collects spans between ``with`` and its end.

    Attributes:
        endpoint: what OTEL_EXPORTER_OTLP_ENDPOINT has to be.
    """

    def __init__(self):
        self._arrived = threading.Condition()
        self._spans: list[Span] = []
        self._services: dict[bytes, str] = {}
        self._server = grpc.server(ThreadPoolExecutor(2))
        trace_service_pb2_grpc.add_TraceServiceServicer_to_server(self, self._server)
        self.endpoint = f"http://127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(self, *_):
        self._server.stop(None).wait()

    def Export(self, request, context):
        """Take spans in."""
        with self._arrived:
            for resource in request.resource_spans:
                service = attributes_of(resource.resource).get("service.name", "")
                for scope in resource.scope_spans:
                    self._spans.extend(scope.spans)
                    self._services.update((span.span_id, str(service)) for span in scope.spans)
            self._arrived.notify_all()
        return trace_service_pb2.ExportTraceServiceResponse()

    def wait_for(self, enough: Callable[[Sequence[Span]], bool], timeout: float = 100.0) -> list[Span]:
        """Return the spans once there are enough of them; TimeoutError when that does not come about."""
        with self._arrived:
            if not self._arrived.wait_for(lambda: enough(self._spans), timeout):
                raise TimeoutError(f"only {[span.name for span in self._spans]} arrived")
            return list(self._spans)

    def service_of(self, span: Span) -> str:
        """Return the service.name of the process that made the span."""
        return self._services[span.span_id]


def attributes_of(holder) -> dict[str, object]:
    """Return the attributes of a span, link, event or resource as plain values."""
    return {each.key: _plain(each.value) for each in holder.attributes}


def _plain(value: AnyValue) -> object:
    kind = value.WhichOneof("value")
    return [_plain(each) for each in value.array_value.values] if kind == "array_value" else getattr(value, kind)


def span_tree(spans: Sequence[Span]) -> str:
    """Write spans as an indented list, children in the order in which they came: ``name KIND``.

    Those of a process come in the order of their ends. Their own times may not be in order: the clock may be set.
    """
    known = {span.span_id for span in spans}
    lines: list[str] = []

    def write(parent: bytes | None, depth: int) -> None:
        children = [span for span in spans if (span.parent_span_id if span.parent_span_id in known else None) == parent]
        for span in children:
            lines.append(f"{'  ' * depth}{span.name} {Span.SpanKind.Name(span.kind).removeprefix('SPAN_KIND_')}")
            write(span.span_id, depth + 1)

    write(None, 0)
    return "\n".join(lines)
