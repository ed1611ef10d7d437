"""Counters say what was emitted; what only repeats earlier tokens counts for nothing."""

from dataclasses import replace

from prometheus_client import CollectorRegistry

from coordinator.metrics import Measurement, Metrics
from coordinator.rounds import Drafted, Event, Fallback, Round, Verdict
from coordinator.session import TokenSource
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
