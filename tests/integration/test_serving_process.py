"""A process built on the serving library alone: its log lines, its end on a signal, its spans over real OTLP/gRPC."""

import json
import os
import signal
import subprocess
import sys
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from specdec.v1 import common_pb2, draft_pb2, draft_pb2_grpc
from tests.integration.tiny_service import NEVER_ANSWERED
from tests.otlp_receiver import OtlpReceiver, attributes_of, span_tree

ROOT = Path(__file__).parents[2]
TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
TRACEPARENT = ("traceparent", f"00-{TRACE_ID}-b7ad6b7169203331-01")


@contextmanager
def process_of(module, *flags, **environment):
    """Run a process."""
    quiet = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "TINY_"))}
    process = subprocess.Popen(
        [sys.executable, "-m", module, *flags],
        cwd=ROOT,
        env=quiet | environment,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@contextmanager
def tiny_service(*flags, **environment):
    """Run the process; give it with the ports of its "serving" line."""
    with process_of("tests.integration.tiny_service", "--metrics-port", "-1", *flags, **environment) as process:
        yield process, wait_for(process, "serving")


def wait_for(process, name):
    """Read a process's log lines up to an event."""
    for line in process.stderr:
        if (event := json.loads(line))["event"] == name:
            return event
    raise AssertionError(f"it ended before it was {name}")


def end(process, number):
    process.send_signal(number)
    _, rest = process.communicate(timeout=100)
    return [json.loads(line) for line in rest.splitlines()]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_drains_stops_and_exits_with_zero(number):
    with tiny_service(TINY_DRAIN_SECONDS="3600") as (process, serving):
        assert serving["service"] == "tiny"
        assert serving["level"] == "info"
        with grpc.insecure_channel(f"127.0.0.1:{serving['port']}") as channel:
            watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
            assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
            lines = end(process, number)
            assert next(watch).status == health_pb2.HealthCheckResponse.NOT_SERVING
        assert [line["event"] for line in lines] == ["draining", "drained", "stopped"]
        assert lines[1]["health"] == "NOT_SERVING"
        assert process.returncode == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_the_process_at_once(number):
    with tiny_service(TINY_DRAIN_SECONDS="3600") as (process, serving):
        with grpc.insecure_channel(f"127.0.0.1:{serving['port']}") as channel:
            hanging = draft_pb2.ProposeRequest(gamma=NEVER_ANSWERED)
            call = draft_pb2_grpc.DraftServiceStub(channel).Propose.future(hanging)
            wait_for(process, "proposing")
            process.send_signal(number)
            wait_for(process, "drained")
            assert not end(process, number), "no traceback, nor anything else"
            assert call.code() is grpc.StatusCode.UNAVAILABLE
        assert process.returncode == 128 + number


def test_a_signal_while_the_model_loads_ends_with_zero():
    """The first pass, which is part of loading, takes a quarter of an hour here."""
    flags = ("--model", "synthetic:seed=1,pass_ms=900000", "--port", "0")
    with process_of("target_service", *flags) as process:
        wait_for(process, "loading")
        lines = end(process, signal.SIGTERM)
        assert [line["event"] for line in lines] == ["draining", "stopped"]
        assert process.returncode == 0


def test_log_lines_carry_trace_and_session_and_uncaught_errors_stay_inside():
    with tiny_service() as (process, serving):
        with grpc.insecure_channel(f"127.0.0.1:{serving['port']}") as channel:
            stub = draft_pb2_grpc.DraftServiceStub(channel)
            request = draft_pb2.ProposeRequest(prefix=common_pb2.CommittedPrefix(session_id="tea"))
            stub.Propose(request, metadata=[TRACEPARENT], timeout=20)
            with pytest.raises(grpc.RpcError) as caught:
                stub.GetModelInfo(common_pb2.GetModelInfoRequest(), metadata=[TRACEPARENT], timeout=20)
        assert caught.value.code() is grpc.StatusCode.INTERNAL
        assert caught.value.details() == f"internal error, trace_id={TRACE_ID}"
        lines = {line["event"]: line for line in end(process, signal.SIGTERM)}
        assert lines["proposing"]["trace_id"] == TRACE_ID
        assert len(lines["proposing"]["span_id"]) == 16
        assert lines["proposing"]["session"] == "tea"
        failed = lines["call failed unexpectedly"]
        assert failed["trace_id"] == TRACE_ID
        assert "KeyError: 'no model'" in failed["exception"]
        assert not {"trace_id", "session"} & lines["draining"].keys()
        assert "session" not in failed


def test_log_level_comes_from_the_settings():
    with tiny_service("--log-level", "debug", TINY_LOG_LEVEL="error") as (process, _):
        end(process, signal.SIGTERM)  # at "error" the "serving" line would not have come


def test_metrics_are_served():
    with tiny_service() as (process, serving):
        with grpc.insecure_channel(f"127.0.0.1:{serving['port']}") as channel:
            draft_pb2_grpc.DraftServiceStub(channel).Propose(draft_pb2.ProposeRequest(), timeout=20)
        with urllib.request.urlopen(f"http://127.0.0.1:{serving['metrics_port']}/metrics", timeout=20) as page:
            assert "tiny_calls_total 1.0" in page.read().decode().splitlines()
        end(process, signal.SIGTERM)


def test_spans_are_exported_over_otlp_before_the_process_ends():
    with OtlpReceiver() as receiver:
        # Spans leave at the end alone: what arrives was flushed by the orderly shutdown.
        environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint, "OTEL_BSP_SCHEDULE_DELAY": "3600000"}
        with tiny_service(**environment) as (process, serving):
            with grpc.insecure_channel(f"127.0.0.1:{serving['port']}") as channel:
                health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=20)
                stub = draft_pb2_grpc.DraftServiceStub(channel)
                stub.Propose(draft_pb2.ProposeRequest(gamma=4), metadata=[TRACEPARENT], timeout=20)
            end(process, signal.SIGTERM)
        spans = receiver.wait_for(lambda arrived: len(arrived) >= 3)
        assert span_tree(spans) == "Propose SERVER\n  Release CLIENT\n    Release SERVER"
        assert {span.trace_id.hex() for span in spans} == {TRACE_ID}
        assert {receiver.service_of(span) for span in spans} == {"tiny"}
        propose = next(span for span in spans if span.name == "Propose")
        assert propose.parent_span_id.hex() == "b7ad6b7169203331"
        assert attributes_of(propose) == {
            "rpc.system.name": "grpc",
            "rpc.method": "specdec.v1.DraftService/Propose",
            "rpc.response.status_code": "OK",
            "specdec.gamma": 4,
        }


def test_otel_variables_rule():
    with OtlpReceiver() as receiver:
        environment = {
            "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": receiver.endpoint,
            "OTEL_SERVICE_NAME": "other",
            "OTEL_TRACES_SAMPLER": "always_off",
        }
        with tiny_service(**environment) as (process, serving):
            with grpc.insecure_channel(f"127.0.0.1:{serving['port']}") as channel:
                stub = draft_pb2_grpc.DraftServiceStub(channel)
                stub.Propose(draft_pb2.ProposeRequest(), timeout=20)
            end(process, signal.SIGTERM)
        assert receiver.wait_for(lambda _: True) == []
        with tiny_service(**(environment | {"OTEL_TRACES_SAMPLER": "always_on"})) as (process, serving):
            with grpc.insecure_channel(f"127.0.0.1:{serving['port']}") as channel:
                draft_pb2_grpc.DraftServiceStub(channel).Release(common_pb2.ReleaseRequest(), timeout=20)
            end(process, signal.SIGTERM)
        [span] = receiver.wait_for(lambda arrived: len(arrived) >= 1)
        assert receiver.service_of(span) == "other"


def test_bad_settings_end_the_process_with_two():
    ended = subprocess.run(
        [sys.executable, "-m", "tests.integration.tiny_service", "--port", "x", "--bogus"],
        cwd=ROOT,
        env=os.environ | {"TINY_HSOT": "a"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert ended.returncode == 2
    problems = ended.stderr.splitlines()
    assert len(problems) == 3
    assert [problem.partition(":")[0] for problem in problems] == ["TINY_HSOT", "--bogus", "--port"]
