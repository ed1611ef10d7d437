"""What one client may do: answers at once, calls and tokens a minute; who a client is without a token."""

from contextlib import ExitStack

import pytest

from coordinator.doors import address_of
from coordinator.limits import ClientLimits
from specdec.errors import ClientLimit, QueueFull


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def calls_until_refused(limits, client, most=100):
    for count in range(most):
        try:
            limits.count_call(client)
        except ClientLimit as refused:
            return count, refused.retry_seconds
    return most, 0.0


def test_calls_come_in_a_burst_and_then_at_their_rate(clock):
    limits = ClientLimits(answers=0, calls=30, tokens=0, clock=clock)
    assert calls_until_refused(limits, "ann") == (30, pytest.approx(2.0))
    assert calls_until_refused(limits, "bob") == (30, pytest.approx(2.0))
    clock.now += 2.0
    assert calls_until_refused(limits, "ann") == (1, pytest.approx(2.0))
    clock.now += 3600
    assert calls_until_refused(limits, "ann")[0] == 30


def test_answers_at_once(clock):
    limits = ClientLimits(answers=2, calls=0, tokens=0, clock=clock)
    with limits.answering("ann", ""), limits.answering("bob", ""):
        with limits.answering("ann", ""), pytest.raises(ClientLimit) as refused, limits.answering("ann", ""):
            pass
        assert refused.value.retry_seconds > 0
        with limits.answering("ann", ""):
            pass
    with pytest.raises(KeyError), limits.answering("ann", ""):
        raise KeyError
    with limits.answering("ann", ""), limits.answering("ann", ""):
        pass


def test_an_answer_that_is_resumed_counts_once_while_its_lost_stream_is_still_there(clock):
    limits = ClientLimits(answers=1, calls=0, tokens=0, clock=clock)
    lost = limits.answering("ann", "tea")
    with lost:
        with limits.answering("ann", "tea"):
            pass
        with pytest.raises(ClientLimit), limits.answering("ann", "milk"):
            pass
    with limits.answering("ann", "milk"):
        pass


@pytest.mark.parametrize(("one_client", "in_all", "refusal"), [(2, 0, ClientLimit), (0, 2, QueueFull)])
def test_one_sessions_name_passes_no_bound_more_than_once(clock, one_client, in_all, refusal):
    limits = ClientLimits(answers=one_client, calls=0, tokens=0, answers_in_all=in_all, clock=clock)
    for _ in range(2):  # whatever has ended no longer counts
        with ExitStack() as calls:
            for _ in range(3):
                calls.enter_context(limits.answering("ann", "tea"))
            for session in ("tea", "milk"):
                with pytest.raises(refusal), limits.answering("ann", session):
                    pass
        with ExitStack() as calls:
            for session in ("tea", "milk", "tea", "milk"):
                calls.enter_context(limits.answering("ann", session))
            with pytest.raises(refusal), limits.answering("ann", "sugar"):
                pass


def test_tokens_may_be_overdrawn_by_an_answer_and_keep_the_next_one_out(clock):
    limits = ClientLimits(answers=0, calls=0, tokens=60, clock=clock)
    with limits.answering("ann", "") as spend:
        spend(50)
    with limits.answering("ann", "") as spend:
        spend(30)
    with pytest.raises(ClientLimit) as refused, limits.answering("ann", ""):
        pass
    assert refused.value.retry_seconds == pytest.approx(21.0)
    limits.count_call("ann")
    clock.now += 21.0
    with limits.answering("ann", ""):
        pass


def test_without_limits_everything_passes(clock):
    limits = ClientLimits(answers=0, calls=0, tokens=0, clock=clock)
    assert calls_until_refused(limits, "ann") == (100, 0.0)
    with limits.answering("ann", "") as first, limits.answering("ann", ""):
        first(10**9)
    with limits.answering("ann", ""):
        pass


def test_clients_that_are_gone_are_forgotten_and_others_are_not(clock):
    limits = ClientLimits(answers=1, calls=60, tokens=60, clock=clock)
    with limits.answering("long", "") as spend:
        spend(60 * 60)
        for number in range(3000):
            clock.now += 1.0
            limits.count_call(f"passing {number}")
        assert len(limits) < 200
        with pytest.raises(ClientLimit), limits.answering("long", ""):
            pass
    with pytest.raises(ClientLimit), limits.answering("long", ""):
        pass


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("ipv4:10.1.2.3:4567", "10.1.2.3"),
        ("ipv6:%5B2001:db8:1:2:3:4:5:6%5D:4567", "2001:db8:1:2::/64"),
        ("ipv6:%5B2001:db8:1:2::9%5D:1", "2001:db8:1:2::/64"),
        ("ipv6:[::ffff:10.1.2.3]:4567", "10.1.2.3"),
        ("ipv6:%5Bfe80::1%25eth0%5D:1", "fe80::/64"),
        ("unix:", "unix"),
        ("unix:/run/socket", "unix"),
    ],
)
def test_a_client_is_its_address_whatever_its_port(peer, address):
    assert address_of(peer) == address
