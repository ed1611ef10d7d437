"""What Prometheus gets from the three processes adds up to what clients were told in Usage."""

import time
import urllib.request
from itertools import pairwise

import grpc
import pytest
from prometheus_client.parser import text_string_to_metric_families

from specdec.v1 import common_pb2
from specdec.v1 import generation_pb2 as v1
from specdec.v1.draft_pb2_grpc import DraftServiceStub
from specdec.v1.target_pb2_grpc import TargetServiceStub

SERVICES = ("coordinator", "draft", "target")
PREFIX = "specdec_spec_decode_num"
PROMPT = "what is counted"
READY_SECONDS = 100.0


def scrape(system, service):
    """Return all samples of a service, by name and labels."""
    with urllib.request.urlopen(system.metrics_url(service), timeout=READY_SECONDS) as answer:
        families = list(text_string_to_metric_families(answer.read().decode()))
    return {
        (sample.name, *(f"{key}={value}" for key, value in sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
        if not sample.name.endswith("_created")
    }


def catch_up(system):
    """Let the model servers show what they have answered: they do so after each turn, and a second call is one more."""
    onlooker = common_pb2.ReleaseRequest(session_id="onlooker", fence={"counter": 1, "owner": "0" * 32})
    for service, stub in ("draft", DraftServiceStub), ("target", TargetServiceStub):
        with grpc.insecure_channel(system.address(service)) as channel:
            for _ in range(2):
                stub(channel).Release(onlooker, timeout=READY_SECONDS)


@pytest.fixture
def growth(traced_system):
    """Tell by how much each sample of a service has grown since the test began, those that have not left out."""
    catch_up(traced_system)
    before = {service: scrape(traced_system, service) for service in SERVICES}

    def since(service):
        now = scrape(traced_system, service)
        return {key: grown for key, value in now.items() if (grown := value - before[service].get(key, 0.0))}

    return since


def request(gamma, tokens=20, **more):
    params = {"temperature": 1.0, "seed": 11, "max_new_tokens": tokens, "ignore_eos": True}
    return {"prompt": PROMPT, "sampling_params": params, "speculation": {"gamma": gamma}} | more


def counters(grown):
    """Return what has been counted, histograms and what runs apart."""
    apart = ("_seconds", "_num_requests_", "_round_gamma")
    return {key: value for key, value in grown.items() if not any(part in key[0] for part in apart)}


def eventually(look, wanted):
    """Wait until gauges, which an engine shows after the answer is on its way, are what they should be."""
    deadline = time.monotonic() + READY_SECONDS
    while (found := look()) != wanted and time.monotonic() < deadline:
        time.sleep(0.02)
    assert found == wanted


def test_counters_of_speculation_are_the_usage(traced_caller, growth):
    usages = [traced_caller.events(**request(gamma))[-1].usage for gamma in (1, 3, 4)]
    longest = max(len(usage.accepted_per_position) for usage in usages)
    padded = [[*usage.accepted_per_position, *[0] * longest][:longest] for usage in usages]
    positions = {index: sum(counts) for index, counts in enumerate(zip(*padded, strict=True)) if sum(counts)}
    assert len(positions) > 1
    grown = growth("coordinator")
    assert grown["specdec_round_gamma_count",] == sum(usage.rounds for usage in usages)
    assert grown["specdec_round_gamma_sum",] == sum(usage.spec_draft_tokens for usage in usages)
    assert counters(grown) == {
        ("specdec_rounds_total",): sum(usage.rounds for usage in usages),
        (f"{PREFIX}_drafts_total",): sum(usage.spec_rounds for usage in usages),
        (f"{PREFIX}_draft_tokens_total",): sum(usage.spec_draft_tokens for usage in usages),
        (f"{PREFIX}_accepted_tokens_total",): sum(usage.spec_accepted_tokens for usage in usages),
        **{
            (f"{PREFIX}_accepted_tokens_per_pos_total", f"position={index}"): count
            for index, count in positions.items()
        },
        ("specdec_prompt_tokens_total",): 3 * len(PROMPT),
        ("specdec_generation_tokens_total",): 60,
        ("specdec_request_success_total", "finished_reason=length"): 3,
    }


def test_gamma_0_counts_rounds_alone(traced_caller, growth):
    usage = traced_caller.events(**request(0, tokens=6))[-1].usage
    assert usage.rounds == 6
    assert counters(growth("coordinator")) == {
        ("specdec_rounds_total",): 6,
        ("specdec_prompt_tokens_total",): len(PROMPT),
        ("specdec_generation_tokens_total",): 6,
        ("specdec_request_success_total", "finished_reason=length"): 1,
    }


def test_fallback_rounds_are_counted_by_reason(traced_caller, growth):
    events = traced_caller.events(**request(2, tokens=40))
    fallbacks = [event.round.fallback for event in events if event.round.fallback]
    assert len(fallbacks) > 3
    assert set(fallbacks) == {v1.FALLBACK_REASON_DRAFT_CONTEXT}
    grown = growth("coordinator")
    assert grown["specdec_fallback_rounds_total", "reason=draft_context"] == len(fallbacks)
    assert grown["specdec_rounds_total",] == events[-1].usage.rounds


def test_what_a_stop_cuts_off_is_not_counted(traced_caller, growth):
    free = traced_caller.tokens(**request(4))
    stopped = request(4)
    stopped["sampling_params"] |= {"stop_token_ids": [free[7]]}
    usage = traced_caller.events(**stopped)[-1].usage
    assert usage.completion_tokens == free.index(free[7]) + 1
    grown = growth("coordinator")
    assert grown["specdec_generation_tokens_total",] == 20 + usage.completion_tokens
    assert grown["specdec_request_success_total", "finished_reason=stop"] == 1


def test_times_are_observed_once_an_answer(traced_caller, growth):
    for _ in range(2):
        traced_caller.events(**request(4))
    traced_caller.events(**request(4, tokens=1))  # has no time per output token
    grown = growth("coordinator")
    for name, count in (
        ("time_to_first_token_seconds", 3),
        ("time_per_output_token_seconds", 2),
        ("e2e_request_latency_seconds", 3),
    ):
        assert grown[f"specdec_{name}_count",] == count
        assert grown[f"specdec_{name}_bucket", "le=+Inf"] == count
        assert grown[f"specdec_{name}_sum",] > 0


def test_a_rounds_time_is_split_among_its_stages(traced_system, traced_caller, growth):
    usage = traced_caller.events(**request(4))[-1].usage
    grown = growth("coordinator")
    for stage in ("queue", "draft", "wire", "verify", "commit"):
        asked = usage.spec_rounds if stage == "draft" else usage.rounds
        assert grown["specdec_round_stage_seconds_count", f"stage={stage}"] == asked
        assert grown.get(("specdec_round_stage_seconds_sum", f"stage={stage}"), 0.0) >= 0
    assert grown["specdec_round_stage_seconds_sum", "stage=verify"] > 0
    assert grown["specdec_round_stage_seconds_sum", "stage=commit"] > 0
    samples = scrape(traced_system, "coordinator")
    assert [samples["specdec_replicas_usable", f"service={name}"] for name in ("target", "draft")] == [1, 1]


def test_an_answer_that_is_resumed_is_not_counted_again(traced_caller, growth):
    last = traced_caller.events(**request(4))[-1]
    before = growth("coordinator")
    traced_caller.events(session_id=last.session_id, resume_from=3)
    assert counters(growth("coordinator")) == counters(before)


def test_model_servers_count_passes_and_tokens(traced_system, traced_caller, growth):
    events = traced_caller.events(**request(4))
    rounds = [event.round for event in events]
    assert {each.gamma for each in rounds} >= {4}
    catch_up(traced_system)
    target, draft = growth("target"), growth("draft")
    assert target["specdec_forward_passes",] == len(rounds)
    assert draft["specdec_forward_passes",] == (passes := sum(each.gamma for each in rounds))
    assert target["specdec_fed_tokens",] == len(PROMPT) - 1 + sum(each.gamma + 1 for each in rounds)
    # A pass of the draft feeds one token; the first of a round feeds what the draft has not seen: the prompt, later the
    # target's own token and, when the round before was accepted as a whole, the last draft token, which is never fed.
    whole = sum(later.gamma > 0 and each.gamma == each.accept_index for each, later in pairwise(rounds))
    assert draft["specdec_fed_tokens",] == len(PROMPT) - 1 + passes + whole


def busy(samples):
    """Return how many calls of a model server run and wait."""
    return samples["specdec_num_requests_running",], samples["specdec_num_requests_waiting",]


def test_model_servers_are_idle_after_an_answer_and_keep_its_cache(traced_system, traced_caller):
    traced_caller.events(**request(4))
    for service in ("draft", "target"):
        # At any moment the release of what is finished may be waiting.
        eventually(lambda name=service: busy(scrape(traced_system, name)), (0, 0))
        samples = scrape(traced_system, service)
        assert samples["specdec_sessions",] >= 1
        assert 0 < samples["specdec_kv_cache_usage_ratio",] < 1
        assert samples["specdec_engine_heartbeat_age_seconds",] < READY_SECONDS


def test_running_answers_are_a_gauge(traced_system, traced_caller):
    def look():
        return scrape(traced_system, "coordinator")["specdec_num_requests_running",]

    stream = traced_caller.stream(**request(0, tokens=4000))
    next(stream)
    assert look() == 1
    stream.cancel()
    eventually(look, 0)
