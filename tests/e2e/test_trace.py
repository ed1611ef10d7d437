"""The trace of a request, as a collector gets it from three processes over OTLP/gRPC."""

import json
import secrets
from types import SimpleNamespace

import pytest
from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from deploy.system import MODULES
from specdec.v1 import generation_pb2 as v1
from tests.e2e.calls import text_of
from tests.otlp_receiver import attributes_of, span_tree

SERVER, CLIENT = Span.SPAN_KIND_SERVER, Span.SPAN_KIND_CLIENT
PARENT = "b7ad6b7169203331"
PROMPT = "my xylophone broke: what now?? what"
# The draft's context ends within the answer, so that round 4 falls back; round 5 has room for one token alone.
REQUEST = {
    "prompt": PROMPT,
    "sampling_params": {"temperature": 1.0, "seed": 7, "max_new_tokens": 9, "ignore_eos": True},
    "speculation": {"gamma": 2},
}
TREE = """\
generate SERVER
  session.open INTERNAL
  round INTERNAL
    Propose CLIENT
      Propose SERVER
    Verify CLIENT
      Verify SERVER
    session.commit INTERNAL
  round INTERNAL
    Propose CLIENT
      Propose SERVER
    Verify CLIENT
      Verify SERVER
    session.commit INTERNAL
  round INTERNAL
    Propose CLIENT
      Propose SERVER
    Verify CLIENT
      Verify SERVER
    session.commit INTERNAL
  round INTERNAL
    Propose CLIENT
      Propose SERVER
    Verify CLIENT
      Verify SERVER
    session.commit INTERNAL
  round INTERNAL
    Verify CLIENT
      Verify SERVER
    session.commit INTERNAL
  round INTERNAL
    Verify CLIENT
      Verify SERVER
    session.commit INTERNAL"""


def spans_of(trace_id, spans):
    """Return the spans of a trace, and the batched passes that are linked to it."""
    mine = [span for span in spans if span.trace_id.hex() == trace_id]
    passes = [span for span in spans if any(link.trace_id.hex() == trace_id for link in span.links)]
    return mine, passes


def is_whole(trace_id, spans):
    """Tell whether every process has exported what it has of a trace."""
    mine, passes = spans_of(trace_id, spans)
    calls = [span for span in mine if span.kind == SERVER and span.name != "generate"]
    expected = sum(attributes_of(span).get("specdec.passes", 0) for span in calls)
    return (
        any(span.name == "generate" for span in mine)
        and len(calls) == sum(span.kind == CLIENT for span in mine)
        and len(passes) == expected
    )


@pytest.fixture
def traced(receiver, traced_caller):
    """Make one request and wait for its trace."""

    def make(**request):
        trace_id = secrets.token_hex(16)
        events = traced_caller.events(traceparent=f"00-{trace_id}-{PARENT}-01", **request)
        spans, passes = spans_of(trace_id, receiver.wait_for(lambda got: is_whole(trace_id, got)))
        return SimpleNamespace(events=events, spans=spans, passes=passes)

    return make


def named(trace, name, kind):
    """Return the spans of a name and kind in the order in which their process has ended them, as attributes."""
    return [attributes_of(span) for span in trace.spans if (span.name, span.kind) == (name, kind)]


def test_the_spans_of_a_request_are_this_tree(traced):
    trace = traced(**REQUEST)
    assert span_tree(trace.spans) == TREE
    root = next(span for span in trace.spans if span.name == "generate")
    assert root.parent_span_id.hex() == PARENT
    assert {span.status.code for span in trace.spans} == {Status.STATUS_CODE_UNSET}


def test_spans_say_which_process_made_them(traced, receiver):
    trace = traced(**REQUEST)
    found = {(span.name, span.kind, receiver.service_of(span)) for span in trace.spans + trace.passes}
    internal = Span.SPAN_KIND_INTERNAL
    assert found == {
        ("generate", SERVER, "specdec-coordinator"),
        ("session.open", internal, "specdec-coordinator"),
        ("round", internal, "specdec-coordinator"),
        ("session.commit", internal, "specdec-coordinator"),
        ("Propose", CLIENT, "specdec-coordinator"),
        ("Verify", CLIENT, "specdec-coordinator"),
        ("Propose", SERVER, "specdec-draft"),
        ("Verify", SERVER, "specdec-target"),
        ("forward", internal, "specdec-draft"),
        ("forward", internal, "specdec-target"),
    }


def test_the_answer_says_session_model_finish_and_usage(traced):
    trace = traced(**REQUEST, session_id="traced.session")
    [generate] = named(trace, "generate", SERVER)
    usage = trace.events[-1].usage
    assert generate == {
        "rpc.system.name": "grpc",
        "rpc.method": "specdec.v1.GenerationService/Generate",
        "rpc.response.status_code": "OK",
        "gen_ai.operation.name": "text_completion",
        "gen_ai.provider.name": "specdec",
        "gen_ai.request.model": "synthetic:seed=1",
        "gen_ai.conversation.id": "traced.session",
        "gen_ai.response.finish_reasons": ["length"],
        "gen_ai.usage.input_tokens": len(PROMPT),
        "gen_ai.usage.output_tokens": 9,
        "specdec.verification": "BLOCK",
        "specdec.rounds": usage.rounds,
        "specdec.spec_rounds": usage.spec_rounds,
        "specdec.spec_draft_tokens": usage.spec_draft_tokens,
        "specdec.spec_accepted_tokens": usage.spec_accepted_tokens,
    }
    assert usage.spec_accepted_tokens > 0


def test_rounds_say_what_the_events_say(traced):
    trace = traced(**REQUEST)
    fallback = v1.FALLBACK_REASON_DRAFT_CONTEXT
    assert [event.round.fallback for event in trace.events] == [0, 0, 0, 0, fallback, 0]
    expected = [
        {
            "specdec.round": event.round.number,
            "specdec.base_length": event.round.base_length,
            "specdec.gamma": event.round.gamma,
            "specdec.accept_index": event.round.accept_index,
            "specdec.sources": [v1.TokenSource.Name(each).removeprefix("TOKEN_SOURCE_") for each in event.sources],
            "specdec.fallback": "DRAFT_CONTEXT" if event.round.fallback == fallback else "",
        }
        for event in trace.events
    ]
    assert named(trace, "round", Span.SPAN_KIND_INTERNAL) == expected


def test_calls_of_the_models_say_what_was_cached_fed_waited_for_accepted_and_trimmed(traced):
    trace = traced(**REQUEST)
    rounds = [event.round for event in trace.events]
    verified, proposed = named(trace, "Verify", SERVER), named(trace, "Propose", SERVER)
    assert [each["specdec.gamma"] for each in verified] == [each.gamma for each in rounds]
    assert [each["specdec.gamma"] for each in proposed] == [each.gamma for each in rounds if each.gamma]
    assert [each["specdec.accept_index"] for each in verified] == [each.accept_index for each in rounds]
    assert [each["specdec.trimmed_tokens"] for each in verified] == [each.gamma - each.accept_index for each in rounds]
    # The cache holds everything but the target's own last token; the first round feeds the prompt.
    assert [each["specdec.cached_tokens"] for each in verified] == [0, *(each.base_length - 1 for each in rounds[1:])]
    fed = [len(PROMPT) + rounds[0].gamma, *(each.gamma + 1 for each in rounds[1:])]
    assert [each["specdec.fed_tokens"] for each in verified] == fed
    assert [each["specdec.passes"] for each in verified] == [1] * len(rounds)
    assert [each["specdec.passes"] for each in proposed] == [each.gamma for each in rounds if each.gamma]
    for each in verified + proposed:
        assert each["gen_ai.conversation.id"] == trace.events[0].session_id
        assert each["specdec.batch_size"] == 1
        assert all(each[f"specdec.{part}_seconds"] > 0 for part in ("queue", "forward", "sampling"))


def test_calls_say_whom_they_asked(traced, traced_system):
    trace = traced(**REQUEST)
    for name, service in (("Verify", "target"), ("Propose", "draft")):
        addresses = {f"{call['server.address']}:{call['server.port']}" for call in named(trace, name, CLIENT)}
        assert addresses == {traced_system.address(service)}


def test_every_pass_links_to_the_calls_it_served(traced):
    trace = traced(**REQUEST)
    calls = {span.span_id: attributes_of(span) for span in trace.spans if span.name in ("Propose", "Verify")}
    fed = dict.fromkeys(calls, 0)
    for span in trace.passes:
        [link] = span.links
        assert not span.parent_span_id
        fed[link.span_id] += attributes_of(span)["specdec.fed_tokens"]
    assert {each: tokens for each, tokens in fed.items() if tokens} == {
        each: calls[each]["specdec.fed_tokens"] for each in calls if "specdec.fed_tokens" in calls[each]
    }


def exported(spans):
    """Return everything that was exported as one text."""
    return json.dumps([MessageToDict(span) for span in spans], ensure_ascii=False)


def as_exported(text):
    """Return a text as JSON writes it inside another."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def test_text_in_a_span_would_be_found():
    text = 'a "quoted"\n\x0e\ufffd word'
    span = Span(name="round")
    span.attributes.add(key="specdec.sources").value.array_value.values.add(string_value=f"before {text} after")
    assert as_exported(text) in exported([span])


@pytest.mark.parametrize("verification", ["TOKEN", "BLOCK", "COUPLED"])
def test_neither_prompt_nor_answer_is_in_a_span(traced, verification):
    request = REQUEST | {"speculation": {"gamma": 2, "verification": f"VERIFICATION_{verification}"}}
    trace = traced(**request)
    everything = exported(trace.spans + trace.passes)
    assert verification in everything
    assert "xylophone" not in everything
    assert as_exported(text_of(trace.events)) not in everything


def test_a_refused_request_is_a_span_with_its_reason_and_no_text(receiver, traced_caller):
    trace_id = secrets.token_hex(16)
    problem = traced_caller.refusal(
        traceparent=f"00-{trace_id}-{PARENT}-01",
        prompt=PROMPT,
        sampling_params={"temperature": 1.0, "seed": 7, "stop": [""]},
    )
    assert problem.reason == "INVALID_PARAMETER"
    spans, _ = spans_of(trace_id, receiver.wait_for(lambda got: spans_of(trace_id, got)[0][1:]))
    assert span_tree(spans) == "generate SERVER\n  session.open INTERNAL"
    root = next(span for span in spans if span.name == "generate")
    assert attributes_of(root)["rpc.response.status_code"] == "INVALID_ARGUMENT"
    assert attributes_of(root)["specdec.error.reason"] == "INVALID_PARAMETER"
    assert "xylophone" not in exported(spans)


def test_without_otel_variables_nothing_is_said_of_exporting(system, caller):
    caller.events(prompt=PROMPT, sampling_params={"max_new_tokens": 4})
    logs = {name: system.log(name).read_text() for name in MODULES}
    assert all('"serving"' in log for log in logs.values())
    assert not [
        line for log in logs.values() for line in log.splitlines() if "opentelemetry" in line or "export" in line
    ]
