"""Counters say what was emitted; what only repeats earlier tokens counts for nothing."""

from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace

import pytest
from prometheus_client import CollectorRegistry

from coordinator.metrics import Measurement, Metrics
from coordinator.rounds import Drafted, Event, Fallback, Round, Verdict
from coordinator.session import TokenSource
from specdec.v1 import common_pb2
from tests.unit.coordinator.fakes import World


def counted(events):
    registry = CollectorRegistry()
    measurement = Measurement(Metrics(registry), World("text").session, started=0.0)
    for event in events:
        measurement.observe(event)
    return lambda name, **labels: registry.get_sample_value(f"specdec_{name}_total", labels)


def event_of(drafted, verdict, tokens):
    return Event(
        0, tokens, ["x"] * len(tokens), [TokenSource.ACCEPTED] * len(tokens), round=Round(0, 3, drafted, verdict)
    )


def test_rounds_count_what_was_emitted_of_them():
    whole = event_of(Drafted([1, 2, 3]), Verdict(2, 9, 0), [1, 2, 9])
    cut = event_of(Drafted([1, 2, 3]), Verdict(3, 9, 0), [1])
    value = counted([whole, cut])
    assert value("rounds") == value("spec_decode_num_drafts") == 2
    assert value("spec_decode_num_draft_tokens") == 6
    assert value("spec_decode_num_accepted_tokens") == 3
    assert value("spec_decode_num_accepted_tokens_per_pos", position="0") == 2
    assert value("spec_decode_num_accepted_tokens_per_pos", position="1") == 1
    assert value("generation_tokens") == 4


def test_fallbacks_and_residuals_without_mass_are_counted():
    fallback = event_of(Drafted(fallback=Fallback.DRAFT_OVERLOADED), Verdict(0, 9, 0), [9])
    empty = event_of(Drafted([1]), Verdict(0, 9, 0, residual_zero=True), [9])
    value = counted([fallback, empty, empty])
    assert value("fallback_rounds", reason="draft_overloaded") == 1
    assert value("residual_zero") == 2


def test_repeated_tokens_do_not_count_again():
    repeated = replace(event_of(Drafted([1]), Verdict(1, 9, 0), [1, 9]), round=None)
    assert counted([repeated])("generation_tokens") == 0


def timings(queue, forward, sampling):
    parts = {"queue": queue, "forward": forward, "sampling": sampling}
    return common_pb2.ServerTimings(**{name: timedelta(seconds=value) for name, value in parts.items()})


def stage_sums(event):
    registry = CollectorRegistry()
    Measurement(Metrics(registry), World("text").session, started=0.0).observe(event)
    [family] = [each for each in registry.collect() if each.name == "specdec_round_stage_seconds"]
    return {each.labels["stage"]: each.value for each in family.samples if each.name.endswith("_sum")}


def test_a_rounds_time_is_split_and_adds_up():
    drafted = Drafted([1, 2], seconds=0.020, timings=timings(0.002, 0.010, 0.001))
    verdict = Verdict(2, 9, 0, seconds=0.050, timings=timings(0.004, 0.030, 0.002))
    sums = stage_sums(replace(event_of(drafted, verdict, [1, 2, 9]), commit_seconds=0.003))
    expected = {"draft": 0.011, "verify": 0.032, "queue": 0.006, "wire": 0.021, "commit": 0.003}
    assert sums == {name: pytest.approx(value) for name, value in expected.items()}


def test_a_draft_that_was_not_asked_takes_no_time():
    sums = stage_sums(event_of(Drafted(), Verdict(0, 9, 0, seconds=0.05), [9]))
    assert sums == {"verify": 0.0, "queue": 0.0, "wire": 0.05, "commit": 0.0}


def test_usable_replicas_are_counted_by_service_at_any_time():
    registry, usable = CollectorRegistry(), {"target": [], "draft": ["one"]}
    services = [SimpleNamespace(service=name, usable=lambda name=name: usable[name], places="x") for name in usable]
    Metrics(registry).watch(SimpleNamespace(targets=services[0], drafts=services[1]))

    def seen():
        return [registry.get_sample_value("specdec_replicas_usable", {"service": name}) for name in usable]

    assert seen() == [0, 1]
    usable["target"] += ["one", "two"]
    assert seen() == [2, 1]


def test_where_no_draft_is_configured_none_is_missing():
    registry = CollectorRegistry()
    services = [
        SimpleNamespace(service=name, usable=list, places=places) for name, places in (("target", "x"), ("draft", ""))
    ]
    Metrics(registry).watch(SimpleNamespace(targets=services[0], drafts=services[1]))
    assert registry.get_sample_value("specdec_replicas_usable", {"service": "target"}) == 0
    assert registry.get_sample_value("specdec_replicas_usable", {"service": "draft"}) is None
