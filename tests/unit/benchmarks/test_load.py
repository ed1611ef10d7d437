"""Many answers at once, on answers made by hand and services made of nothing."""

import asyncio
import selectors
import statistics
from itertools import pairwise

import grpc
import pytest

from benchmarks.load import cells, parse, plan_of, requests
from benchmarks.load_figures import first_token, load_figures, percentiles, round_ms, token_seconds, tokens_a_second
from benchmarks.load_goals import goals
from benchmarks.load_run import Answered, Loading, arrivals, closed_loop, open_loop
from benchmarks.load_section import section
from benchmarks.recording import Inside, Recording, Round
from benchmarks.wording import against_goal
from specdec.v1 import generation_pb2


def answered(begun, *arrived, emitted=2):
    rounds = tuple(Round(1, emitted - 1, emitted, moment) for moment in arrived)
    return Answered(begun, Recording((), tuple(range(emitted * len(rounds))), rounds))


def test_only_what_came_between_two_moments_counts():
    run = [answered(1, 0.5, 1.5, 2.5), answered(2, 0.1)]
    assert tokens_a_second(run, 2, 4) == (2 * 2 + 2) / 2


def test_those_that_wait_at_the_end_count_with_what_they_waited():
    assert first_token(answered(5, 0.25, 0.5), end=8) == 0.25
    assert first_token(answered(5), end=8) == 3


def test_the_time_of_a_token_needs_enough_of_them():
    assert token_seconds(answered(0, *range(1, 7)), 0, 100) == [5 / 10]
    assert token_seconds(answered(0, *range(1, 7)), 2, 100) == [4 / 8]
    assert token_seconds(answered(0, *range(1, 7)), 3, 100) == []


def test_percentiles_are_values_that_occurred():
    assert percentiles([float(value) for value in range(100, 0, -1)]) == {"p50": 50.0, "p99": 99.0}
    assert percentiles([3.0]) == {"p50": 3.0, "p99": 3.0}
    assert percentiles([]) is None


def test_the_warm_up_does_not_count_and_refusals_do():
    early, late = answered(0, 1, 3, 5), answered(5, 1)
    refused = Answered(6, Recording((), (), ()), refused=True)
    found = load_figures([[early, late, answered(7), refused]], seconds=8)
    assert found["tokens_a_second"] == (2 + 2 + 2) / 6
    assert (found["answers"], found["waiting"], found["refused"]) == (2, 1, 1)
    assert found["first_token_seconds"] == {"p50": 1, "p99": 1}
    assert (found["rounds"], found["acceptance"][0]["reached"]) == (2, 2)  # at 3 and 5, neither at 1 nor first ones
    early_refusal = Answered(1, Recording((), (), ()), refused=True)
    assert load_figures([[early, early_refusal]], seconds=8)["refused"] == 0


def test_a_lap_that_stands_out_does_not_move_the_median():
    laps = [[answered(2, *(0.1 * step for step in range(1, rounds)))] for rounds in (20, 40, 22)]
    found = {("closed", 1, gamma): laps if gamma else laps[:1] * 3 for gamma in (0, 4)}
    plain, fixed = cells(found, 8.0)
    assert plain["tokens_a_second"] == 38 / 6
    assert fixed["tokens_a_second"] == 42 / 6
    assert (fixed["against_plain"], fixed["against_plain_by_run"]) == (42 / 38, [1, 78 / 38, 42 / 38])


def test_the_parts_of_a_rounds_calls_add_up():
    inside = Inside(queue=0.002, forward=0.040, sampling=0.003)
    rounds = [
        Round(0, 0, 1, 1.0, verify_seconds=0.050, target=inside),
        Round(1, 0, 1, 2.0, 0.010, 0.060, target=inside),
    ]
    parts = {"propose": 5.0, "queue": 2.0, "forward": 40.0, "sampling": 3.0, "verify_else": 10.0}
    assert round_ms(rounds) == pytest.approx(parts)
    assert round_ms([]) is None


def test_arrivals_are_as_many_as_the_rate_says_and_the_same_again():
    moments = list(arrivals(50.0, seed=3, seconds=20.0))
    assert moments == list(arrivals(50.0, seed=3, seconds=20.0)) != list(arrivals(50.0, seed=4, seconds=20.0))
    assert moments == sorted(moments)
    assert abs(len(moments) - 1000) < 5 * 1000**0.5
    gaps = [later - earlier for earlier, later in pairwise(moments)]
    assert statistics.stdev(gaps) == pytest.approx(statistics.fmean(gaps), rel=0.2)  # exponential


class Leaps(selectors.DefaultSelector):
    """Leaps over the times that nothing happens in: how fast the machine is does not matter."""

    now = 0.0

    def select(self, timeout=None):
        self.now += max(0.0, timeout or 0.0)
        return super().select(None if timeout is None else 0)


def timed(work):
    """Do some work by a clock that leaps."""
    leaps = Leaps()

    def new_loop():
        loop = asyncio.SelectorEventLoop(leaps)
        loop.time = lambda: leaps.now
        return loop

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(work)


class Services:
    """Answers every request with events at a pace, and counts how many run at once."""

    def __init__(self, seconds, error=None):
        self.seconds, self.error = seconds, error
        self.running = self.most = 0

    async def Generate(self, request, timeout):
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            for _ in range(3):
                await asyncio.sleep(self.seconds)
                yield generation_pb2.GenerateResponse(token_ids=[1])
            if self.error:
                raise self.error
        finally:
            self.running -= 1


def failure(code):
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata())


def request(number):
    return generation_pb2.GenerateRequest(prompt=str(number))


def test_a_closed_loop_keeps_its_sessions_busy_and_ends_in_time():
    services = Services(0.5)
    loading = Loading([services], request)
    timed(closed_loop(loading, sessions=3, seconds=40))
    assert (services.most, services.running) == (3, 0)
    tokens = [len(answer.recording.token_ids) for answer in loading.answers]
    # Answers of 1.5 s, three sessions that begin after 0, 10/3 and 20/3 s, and three answers cut by the end.
    assert (tokens.count(3), len(tokens)) == (26 + 24 + 22, 26 + 24 + 22 + 3)


def test_an_open_loop_does_not_wait_for_answers():
    services = Services(10)
    loading = Loading([services], request)
    timed(open_loop(loading, rate=50, seed=1, seconds=0.3))
    assert 1 < services.most == len(loading.answers) == len(list(arrivals(50, 1, 0.3)))
    assert services.running == 0


def test_a_refusal_is_counted_and_any_other_failure_raised():
    loading = Loading([Services(0.1, failure(grpc.StatusCode.RESOURCE_EXHAUSTED))], request)
    timed(closed_loop(loading, sessions=1, seconds=5))
    assert [answer.refused for answer in loading.answers] == [True] * 10  # 0.3 s, and a pause
    broken = Loading([Services(0.1, failure(grpc.StatusCode.UNAVAILABLE))], request)
    with pytest.raises(grpc.aio.AioRpcError):
        timed(closed_loop(broken, sessions=2, seconds=5))


def test_ways_are_plain_fixed_and_adaptive_and_requests_unseeded():
    plan = plan_of(parse(["--gamma", "8", "4", "--verification", "coupled"]))
    assert plan.gammas == (0, 4, 8, None)
    assert plan.ignore_eos
    assert int(plan.environment["TARGET_MAX_SESSIONS"]) >= 2 * max(plan.sessions)
    adaptive, fixed = (requests(plan, gamma)(0) for gamma in (None, 8))
    assert not adaptive.speculation.HasField("gamma")
    assert fixed.speculation.gamma == 8
    assert not adaptive.sampling_params.HasField("seed")
    assert len({requests(plan, None)(number).prompt for number in range(10)}) == 10


def test_a_pair_may_be_named():
    assert plan_of(parse(["--pair", "smollm2"])).target == "embedded:smollm2"
    assert plan_of(parse(["--target", "T"])).draft == "lookup:"
    assert parse(["--target", "T"]).name == "T"


def test_the_section_compares_with_plain_decoding():
    runs = [[answered(3, *(0.1 * step for step in range(1, 20)))]]
    found = {("closed", 4, gamma): runs * 2 for gamma in (0, 4, None)} | {("open", 0.5, 0): [[]]}
    facts = {"date": "2026-01-02", "command": "python -m x", "commit": "abc", "versions": {}, "tracing": "off"}
    machine = {"cpu": "C", "cores": 2, "logical_cores": 4, "memory_gib": 8.0, "gpus": [], "load_average": 0.1}
    settings = {"target": "T", "draft": "D", "threads": 1, "seconds": 8.0, "laps": 2, "max_new_tokens": 9}
    settings |= {"temperature": 1.0, "verification": "block"}
    report = facts | {"machine": machine, "environment": {}, "seconds": 9.0, "settings": settings, "name": "N"}
    text = section(report | {"cells": cells(found, 8.0)})
    assert "| 4, adaptive | 6.3 (6.3–6.3) | 1.00 (1.00–1.00) | 1.00 | 100.0 | 100.0 | 50.0 | 50.0 | 2 | 0 | 0 |" in text
    assert "does not count, in every way in each of 2 laps in changing order; tokens a second are medians over" in text
    assert "p99 of fewer than a hundred being the largest" in text
    report["settings"]["laps"] = 1
    once = section(report | {"cells": cells({key: runs[:1] for key, runs in found.items()}, 8.0)})
    assert "does not count, once in every way, so that there is no spread; answers of" in once
    assert "| 4, adaptive | 6.3 | 1.00 | 1.00 |" in once
    assert "| 0.5, gamma 0 | 0.0 | – | – | – | – | – | – | 0 | 0 | 0 |" in text
    assert "Adaptive gamma's pace against the best fixed one is 1.00 or more in all 1 setting and meets 0.95." in text


def loaded(**paces):
    """Return closed loops' cells of (one, sixteen) sessions by way."""
    ways = {"plain": "gamma 0", "fixed": "gamma 4", "adaptive": "adaptive"}
    return {
        "cells": [
            {"kind": "closed", "load": load, "way": ways[name], "tokens_a_second": pace, "rounds": 10}
            | {"draft_tokens_a_round": 0.5 * (name != "plain"), "acceptance": [{"accepted": 2}, {"accepted": 1}]}
            | {"round_ms": {"forward": 10.0 * load, "queue": 5.0}}
            | {"against_plain": pace / plain if (plain := paces["plain"][load > 1]) else None}
            for name, both in paces.items()
            for load, pace in zip((1, 16), both, strict=True)
        ]
    }


def test_many_sessions_and_adaptive_gamma_are_compared_with_the_goals():
    text = goals(loaded(plain=(10, 50), fixed=(20, 60), adaptive=(19.5, 48)))
    assert (
        "What 16 sessions bring against one meets 4 in 1 of 3 settings and misses it at gamma 4: 3.00; adaptive: 2.46"
        in text
    )
    assert "one meets 0.95 in 1 of 2 settings and misses it at 16 sessions: 0.80." in text
    assert "Against gamma 0 it meets 0.97 in 1 of 2 settings and misses it at 16 sessions: 0.96." in text
    assert "With one session a round of gamma 4 had 0.50 draft tokens, of which 0.30 stood, and took 15.0 ms" in text
    assert "with 16 a round of adaptive had 0.50 draft tokens, of which 0.30 stood, and took 165.0 ms" in text
    assert "With one session a round of gamma 0" not in text
    assert "At 16 sessions a round of adaptive had 0.50" in text
    assert "; a round of gamma 4 had 0.50 draft tokens, of which 0.30 stood, and took 165.0 ms of calls, 160.0" in text
    assert "At 1 sessions" not in text
    assert goals(loaded(plain=(0, 0), adaptive=(0, 0))) == "No load was long enough to be compared."


def test_a_goal_that_is_just_missed_is_not_rounded_up_to():
    assert "at a: 0.966; b: 0.90." in against_goal("It", {"a": 0.966, "b": 0.9, "c": 1.0}, 0.97)
    assert "in all 1 setting and meets 0.97." in against_goal("It", {"a": 0.97}, 0.97)
