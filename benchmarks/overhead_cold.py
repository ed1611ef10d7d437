"""What work costs on this machine that comes after a wait: the floor under a round's overhead.

The services run for a millisecond and wait for a pass of many. Meanwhile what they need leaves the caches, and a core
that has slept wakes late. So the same draw of a draft token, the same verdict and the same call that does nothing are
timed over and over, one right after the other and each after the wait that it has in a round.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import grpc
import torch
from grpc_health.v1 import health_pb2, health_pb2_grpc

from benchmarks.overhead_run import SEED, VOCABULARY, Point
from benchmarks.speculation import spread
from draft_service.drafting import Draft, DraftLimits, draw
from specdec.fence import Fence
from specdec.model.language_model import Segment
from specdec.model.synthetic import SyntheticModel
from specdec.parameters import SamplingParams, Verification
from specdec.prefix import CommittedPrefix
from specdec.proposal import Proposal
from target_service.verifying import TargetLimits, Verify, decide

TIMES = 100
DRAW, CALL = "draw of a draft token", "call that does nothing"
ITSELF, BUSY, SLEEP = "itself", "a busy wait", "a sleep"
PREFIX = CommittedPrefix("cold", Fence(1, "cold"), 0, b"", (1, 2, 3), 3)
PARAMS = SamplingParams(seed=SEED)
DRAFT_LIMITS = DraftLimits(VOCABULARY, context_length=4096, support_size=64, end_token_ids=())
TARGET_LIMITS = TargetLimits(VOCABULARY, context_length=4096, end_token_ids=())


def measure_cold(point: Point, gamma: int, target_address: str) -> list[dict[str, Any]]:
    """Time each piece of work in each way.

    Args:
        point: whose passes are waited for.
        gamma: draft tokens of the verdict.
        target_address: of a server whose health is asked for.

    Returns:
        Entries of what was done, after what, and its milliseconds.

    Raises:
        grpc.RpcError: the server does not answer.
    """
    with grpc.insecure_channel(target_address) as channel:
        check = health_pb2_grpc.HealthStub(channel).Check
        works: list[tuple[str, Callable[[], object], float]] = [
            (DRAW, drawing(point), point.draft_ms),
            (verdict(0), deciding(point, 0), point.target_ms),
            (verdict(gamma), deciding(point, gamma), point.target_ms),
            (CALL, lambda: check(health_pb2.HealthCheckRequest(), timeout=10), point.target_ms),
        ]
        return [entry for what, work, milliseconds in works for entry in _timed(what, work, milliseconds / 1000)]


def verdict(gamma: int) -> str:
    """Return the name of the target's work after a pass."""
    return f"verdict, γ {gamma}"


def drawing(point: Point) -> Callable[[], object]:
    """Return what draws one draft token as the draft does after a pass."""
    logits = _logits(_model(_unpaced(point).draft), PREFIX.tokens, 1)

    def work() -> object:
        draft = Draft(PREFIX, PARAMS, 1, Verification.BLOCK, DRAFT_LIMITS)
        draft.start(list(PREFIX.tokens))
        [outcome] = draw([(draft, logits)])
        return outcome

    return work


def deciding(point: Point, gamma: int) -> Callable[[], object]:
    """Return what decides a proposal of gamma draft tokens as the target does after a pass."""
    proposal = propose(point, gamma)
    logits = _logits(_model(_unpaced(point).target), [*PREFIX.tokens, *proposal.draft_tokens], gamma + 1)

    def work() -> object:
        call = Verify(PREFIX, PARAMS, Verification.BLOCK, proposal, TARGET_LIMITS)
        call.begin(list(PREFIX.tokens))
        [outcome] = decide([(call, logits)])
        return outcome

    return work


def propose(point: Point, gamma: int) -> Proposal:
    """Draft as the draft service does, without its pace."""
    draft = Draft(PREFIX, PARAMS, gamma, Verification.BLOCK, DRAFT_LIMITS)
    draft.start(list(PREFIX.tokens))
    model = _model(_unpaced(point).draft)
    while not draft.full:
        draw([(draft, _logits(model, [*PREFIX.tokens, *draft.draft_tokens], 1))])
    return Proposal(tuple(draft.draft_tokens), tuple(draft.draft_distributions))


def _unpaced(point: Point) -> Point:
    return Point(0, 0, point.alpha)


def _model(name: str) -> SyntheticModel:
    return SyntheticModel(name, torch.device("cpu"), torch.float32)


def _logits(model: SyntheticModel, tokens: Sequence[int], rows: int) -> torch.Tensor:
    [logits] = model.forward([Segment(model.new_cache(), tokens, rows)])
    return logits


def floor_ms(cold: Sequence[dict[str, Any]], way: dict[str, Any], after: str) -> float:
    """Return what draws, verdict and calls of a round take at least.

    A floor lies above nothing that it bounds: each counts with what it took apart, after something, or with the mean
    that it took in the rounds where that is less.

    Args:
        cold: what ``measure_cold`` found.
        way: the figures of the rounds.
        after: a wait, or itself.
    """
    apart = {entry["what"]: entry["milliseconds"]["median"] for entry in cold if entry["after"] == after}
    gamma, took = way["gamma"], way["milliseconds"]
    pieces = [
        (gamma * apart[DRAW], took["draft_sampling"]),
        (apart[verdict(gamma)], took["target_sampling"]),
        ((2 if gamma else 1) * apart[CALL], took["propose_call"] + took["verify_call"]),
    ]
    return float(sum(min(piece) for piece in pieces))


def _timed(what: str, work: Callable[[], object], wait_seconds: float) -> Iterator[dict[str, Any]]:
    waits: dict[str, Callable[[], None]] = {
        ITSELF: lambda: None,
        BUSY: lambda: _be_busy(wait_seconds),
        SLEEP: lambda: time.sleep(wait_seconds),
    }
    for after, wait in waits.items():
        yield {
            "what": what,
            "after": after,
            "wait_ms": 0.0 if after == ITSELF else 1000 * wait_seconds,
            "milliseconds": spread([_milliseconds(work, wait) for _ in range(TIMES)]),
        }


def _milliseconds(work: Callable[[], object], wait: Callable[[], None]) -> float:
    wait()
    begun = time.perf_counter()
    with torch.inference_mode():
        work()
    return 1000 * (time.perf_counter() - begun)


def _be_busy(seconds: float) -> None:
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass
