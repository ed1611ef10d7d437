"""What the wire benchmark weighs and reads, and that its section says it."""

import os

import pytest

from benchmarks.wire import parse, plan_of
from benchmarks.wire_messages import Peer
from benchmarks.wire_run import cpu_seconds
from benchmarks.wire_section import section


def test_a_warm_peer_is_sent_what_it_lacks_alone():
    peer = Peer()
    assert list(peer.prefix("s", range(1, 101), 100).tokens) == list(range(1, 101))
    peer.cached_length = 100
    warm = peer.prefix("s", range(1, 104), 100)
    assert (warm.start, list(warm.tokens)) == (100, [101, 102, 103])
    peer.cached_length = 110  # draft tokens that just were kept are more than the caller has committed so far
    assert peer.prefix("s", range(1, 104), 100).start == 103


def test_cpu_time_grows_with_work():
    before = cpu_seconds(os.getpid())
    spent = os.times()
    while os.times().user - spent.user < 0.05:
        pass
    assert cpu_seconds(os.getpid()) - before >= 0.04


def test_the_models_have_room_for_the_longest_context():
    plan = plan_of(parse(["--context", "100", "9000", "--rounds", "50"]))
    assert plan.contexts == (100, 9000)
    assert int(plan.environment["DRAFT_CACHE_TOKENS"]) >= int(plan.model.rpartition("=")[2]) >= 9000 + 6 * 50


@pytest.fixture
def report():
    cell = {"support_size": 64, "context": 100, "rounds": 10}
    cell["messages"] = {
        "ProposeRequest": 132.4,
        "ProposeResponse": 2166.0,
        "VerifyRequest": 2266.0,
        "VerifyResponse": 31.0,
    }
    cell["bytes"] = {"draft": 2392.0, "target": 2404.0, "redis": 719.0}
    cell["cpu_ms"] = {"coordinator": 1.234, "draft": 2.0, "target": 3.0, "redis": 0.24}
    run = {"coordinators": 2, "gamma": 5, "sessions": 16, "rounds": 99, "rounds_a_second": 612.3, "rounds_a_core": 701}
    run["cores"] = {"coordinators": 0.87, "draft": 0.5, "target": 0.25}
    facts = {"date": "2026-01-02", "command": "python -m x", "commit": "abc", "versions": {}, "tracing": "off"}
    machine = {"cpu": "C", "cores": 2, "logical_cores": 4, "memory_gib": 8.0, "gpus": [], "load_average": 0.1}
    settings = {"gamma": 5, "weighed_rounds": 20, "rounds": 10, "sessions": 8}
    report = facts | {"machine": machine, "environment": {}, "seconds": 9.0, "settings": settings}
    return report | {"cells": [cell], "carried": [run]}


def test_the_section_says_what_the_json_says(report):
    text = section(report)
    assert "| 64, 100 | 132 | 2166 | 2266 | 31 | 2392 | 2404 | 719 |" in text
    assert "| 64, 100 | 1.23 | 2.00 | 3.00 | 0.24 |" in text
    assert "| 2, 5 | 16 | 612 | 701 | 0.87 | 0.50 | 0.25 | – | – |" in text
    assert "in rounds a second, is 701.00 or more in all 1 setting and meets 500." in text
    assert "differ by 0.0 % at most" in text
    assert "times as much as one" not in text


def test_what_a_second_coordinator_brings_is_said_with_the_cores_that_were_busy(report):
    cores = {"coordinators": 0.5, "draft": 0.5, "target": 0.25, "redis": 0.125, "client": 0.25}
    alone = report["carried"][0] | {"coordinators": 1, "rounds_a_second": 500.0, "cores": cores}
    text = section(report | {"carried": [alone, report["carried"][0]]})
    assert "With γ 5 two coordinators carry 1.22 times as much as one: coordinators, draft, target keep 1.62" in text
    assert "1.62 of the machine's 4 cores busy then, and 1.62 with one." in text
    assert "| 1, 5 | 16 | 500 | 701 | 0.50 | 0.50 | 0.25 | 0.12 | 0.25 |" in text
