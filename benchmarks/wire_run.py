"""Rounds through the real coordinator: the bytes on its connections, and the CPU time of every process."""

import asyncio
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import psutil

from benchmarks.load_run import Answered, Loading, asynchronous_stubs, closed_loop
from benchmarks.meter import address, metered
from benchmarks.recording import CALL_SECONDS
from benchmarks.services import Beside, Services
from benchmarks.ways import speculation
from specdec.v1 import common_pb2, generation_pb2


@dataclass(frozen=True, slots=True)
class Reading:
    """What has passed so far.

    Attributes:
        bytes: by connection of the coordinator, both directions.
        cpu_seconds: by process.
    """

    bytes: dict[str, int]
    cpu_seconds: dict[str, float]


def cpu_seconds(pid: int) -> float:
    """Return the CPU time that a process has taken, its threads included."""
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def pid_of(services: Services, name: str) -> int:
    """Return the process id of a part of the system.

    Raises:
        RuntimeError: it has ended.
    """
    record = services.system.processes[name].record()
    if record is None:
        raise RuntimeError(f"{name} has ended")
    return record.pid


def measure_rounds(
    services: Services, draft: tuple[str, int], prompts: Sequence[Sequence[int]], gamma: int, rounds: int
) -> list[dict[str, Any]]:
    """Answer prompts one after the other and say what a round passes and costs, the rounds of the prompt left out.

    Args:
        services: whose target and Redis take part.
        draft: address and process id.
        prompts: token ids.
        gamma: draft tokens a round.
        rounds: of an answer, about.
    """
    system, found = services.system, []
    peers = {"draft": draft[0], "target": system.address("target"), "redis": system.address("redis")}
    with ExitStack() as stack:
        links = stack.enter_context(metered(peers))
        beside = stack.enter_context(Beside(services))
        place, stub = beside.coordinator(address(links["target"]), address(links["draft"]), address(links["redis"]))
        pids = {"coordinator": place.pid, "draft": draft[1]}
        pids |= {name: pid_of(services, name) for name in ("target", "redis")}

        def read() -> Reading:
            passed = {name: link.towards + link.back for name, link in links.items()}
            return Reading(passed, {name: cpu_seconds(pid) for name, pid in pids.items()})

        for prompt in prompts:
            events = stub.Generate(_request(prompt, gamma, rounds), timeout=CALL_SECONDS)
            for _ in range(2):  # the second round brings the draft what it lacked after the first
                next(events)
            before, passed = read(), sum(1 for _ in events)
            found.append({"context": len(prompt), "rounds": passed, **_a_round(before, read(), passed)})
    return found


def _a_round(before: Reading, after: Reading, rounds: int) -> dict[str, dict[str, float]]:
    return {
        "bytes": _per(before.bytes, after.bytes, rounds),
        "cpu_ms": _per(before.cpu_seconds, after.cpu_seconds, rounds / 1000),
    }


def _per(before: Mapping[str, float], after: Mapping[str, float], rounds: float) -> dict[str, float]:
    return {name: (after[name] - before[name]) / rounds for name in before}


def measure_carried(
    services: Services, coordinators: Mapping[str, int], gamma: int, sessions: int, seconds: float
) -> dict[str, Any]:
    """Keep coordinators as busy as they can be and say what they carry.

    Args:
        services: whose models answer.
        coordinators: process ids by address.
        gamma: draft tokens a round.
        sessions: of each coordinator, which ask again and again.
        seconds: that this takes.
    """
    others = {name: pid_of(services, name) for name in ("draft", "target", "redis")} | {"client": os.getpid()}
    pids = {**coordinators, **others}
    before, started = {name: cpu_seconds(pid) for name, pid in pids.items()}, time.perf_counter()
    answers = asyncio.run(_load(list(coordinators), gamma, sessions * len(coordinators), seconds))
    took = time.perf_counter() - started
    cpu = {name: cpu_seconds(pid) - before[name] for name, pid in pids.items()}
    rounds = sum(len(answer.recording.rounds) for answer in answers)
    own = sum(cpu[address] for address in coordinators)
    return {
        "coordinators": len(coordinators),
        "gamma": gamma,
        "sessions": sessions * len(coordinators),
        "rounds": rounds,
        "rounds_a_second": rounds / took,
        "rounds_a_core": rounds / own,
        "cores": {"coordinators": own / took} | {name: cpu[name] / took for name in others},
    }


async def _load(addresses: Sequence[str], gamma: int, sessions: int, seconds: float) -> list[Answered]:
    async with asynchronous_stubs(addresses) as stubs:
        loading = Loading(stubs, lambda number: _request([1 + number % 97] * 32, gamma, 100))
        await closed_loop(loading, sessions, seconds)
    return loading.answers


def _request(prompt: Sequence[int], gamma: int, rounds: int) -> generation_pb2.GenerateRequest:
    """Ask for an answer of so many rounds, if half of the draft tokens stand."""
    sampling = common_pb2.SamplingParams(
        temperature=1, seed=1, max_new_tokens=2 * rounds if gamma else rounds, ignore_eos=True
    )
    return generation_pb2.GenerateRequest(
        token_ids=prompt, sampling_params=sampling, speculation=speculation(gamma, "block")
    )
