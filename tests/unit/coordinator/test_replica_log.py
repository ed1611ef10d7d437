"""What the log says of replicas that come and go, in the cases that operators meet: once, and with the cause."""

from itertools import chain, repeat

import pytest
from structlog.testing import capture_logs

from coordinator import replicas
from coordinator.replica import TRIES_UNSAID
from tests.unit.coordinator.watched import NOT_SERVING, REFUSED, SERVING, Watched, broken, followed, model


@pytest.fixture(autouse=True)
def _at_once(monkeypatch):
    monkeypatch.setattr(replicas, "RETRY_SECONDS", 0.0)


async def said(target, draft):
    """Return what is logged of replicas: event, service and cause; all of them with the address."""
    with capture_logs() as lines:
        async with followed(target, draft):
            pass
    of_replicas = [line for line in lines if "address" in line]
    assert all(line["address"] == f"{line['service']}:1" for line in of_replicas)
    return [(line["log_level"], line["event"], line["service"], line.get("why")) for line in of_replicas]


IN_USE = ("info", "replica is in use", "target", None)
AWAY = ("warning", "replica is away", "target", f"UNAVAILABLE: {REFUSED.details()}")


async def test_a_replica_that_goes_while_nobody_calls_it_is_said_once_and_that_it_is_back():
    target = Watched([SERVING], *[[]] * 3 * TRIES_UNSAID, [SERVING])
    assert await said(target, Watched()) == [IN_USE, AWAY, IN_USE]


async def test_a_replica_that_was_never_reached_is_said_once_after_some_tries():
    assert await said(Watched(*[[]] * TRIES_UNSAID), Watched()) == []  # the last of them does not fail
    assert await said(Watched(*[[]] * (3 * TRIES_UNSAID)), Watched()) == [AWAY]


async def test_a_cause_that_gives_way_to_another_is_not_all_that_is_said():
    """A target that speaks no TLS is refused while it starts, and cannot be spoken with from then on."""
    errors = chain([REFUSED] * TRIES_UNSAID, repeat(broken("Ssl handshake failed")))
    target = Watched(*[[]] * (5 * TRIES_UNSAID), errors=errors)
    assert await said(target, Watched()) == [AWAY, (*AWAY[:3], "UNAVAILABLE: Ssl handshake failed")]


async def test_a_replica_that_says_it_does_not_serve_any_more_is_away():
    why = "it is not serving"
    assert await said(Watched([SERVING, NOT_SERVING], []), Watched()) == [IN_USE, (*AWAY[:3], why)]
    assert await said(Watched([NOT_SERVING, SERVING]), Watched()) == [IN_USE]


async def test_a_replica_whose_call_fails_is_said_with_the_cause():
    target = Watched([SERVING])
    with capture_logs() as lines:
        async with followed(target, Watched()) as fleet:
            [replica] = fleet.targets.usable()
            for _ in range(2):
                fleet.targets.lost(replica, "no answer in 30 s")
    assert [line["why"] for line in lines if line["event"] == "replica is away"] == ["no answer in 30 s"]


async def test_what_keeps_a_replica_from_being_used_is_said_once(monkeypatch):
    def fail(_):
        raise OSError("no such tokenizer")

    monkeypatch.setattr("coordinator.fleet.load_tokenizer", fail)
    lines = await said(Watched(*[[SERVING]] * 5, []), Watched())
    assert lines == [("warning", "replica cannot be used", "target", "no such tokenizer")]


async def test_a_replica_that_is_refused_is_said_to_be():
    draft = Watched([SERVING], info=model(vocabulary_size=299))
    lines = await said(Watched([SERVING]), draft)
    assert sorted(lines) == [("error", "replica refused", "draft", "its vocabulary is not that of m"), IN_USE]
