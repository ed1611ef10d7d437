"""What processes hold while nothing is under way: file descriptors, caches, answers, leases."""

import asyncio
import os
import time
import urllib.request
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
from prometheus_client.parser import text_string_to_metric_families

from tests.chaos.world import LEASE_SECONDS, World

SECONDS = 20.0
POLL_SECONDS = 0.1
HELD = ("specdec_num_requests_running", "specdec_num_requests_waiting", "specdec_sessions")


@dataclass(frozen=True, slots=True)
class Level:
    """What a process holds.

    Attributes:
        descriptors: open files and sockets, but connections to Redis.
        to_redis: connections to Redis, and such as the other side has reset: a pool notices that at their next use.
        held: gauges by name: answers, calls, sessions with a cache.
    """

    descriptors: int
    to_redis: int
    held: dict[str, float]


def level(world: World, name: str) -> Level:
    """Look at a service."""
    service = world.services[name]
    process = psutil.Process(service.pid)
    ports = world.redis_ports()
    connections = process.net_connections("all")
    to_redis = sum(bool(each.raddr) and getattr(each.raddr, "port", 0) in ports for each in connections)
    to_redis += _sockets(service.pid) - len(connections)
    return Level(process.num_fds() - to_redis, to_redis, gauges(service.metrics_port))


def _sockets(pid: int) -> int:
    """Count the sockets of a process; one that the other side has reset is in no table of connections any more."""
    count = 0
    for each in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            count += os.readlink(each).startswith("socket:")
    return count


def gauges(port: int) -> dict[str, float]:
    """Return the gauges that count what is held."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=SECONDS) as answer:
        families = text_string_to_metric_families(answer.read().decode())
        samples = [sample for family in families for sample in family.samples]
    return {sample.name: sample.value for sample in samples if sample.name in HELD}


async def settled(world: World, allowed: dict[str, Level]) -> list[str]:
    """Wait until no service holds more than it is allowed; return who still does when time is up, and what."""
    deadline = time.monotonic() + SECONDS
    while True:
        above = [line for name in world.services for line in _above(name, level(world, name), allowed[name])]
        if not above or time.monotonic() > deadline:
            return above
        await asyncio.sleep(POLL_SECONDS)


def _above(name: str, now: Level, allowed: Level) -> list[str]:
    found = []
    if now.descriptors > allowed.descriptors:
        found.append(f"{name} has {now.descriptors} file descriptors, {allowed.descriptors} before")
    if now.to_redis > allowed.to_redis:
        found.append(f"{name} has {now.to_redis} connections to Redis, at most {allowed.to_redis} are meant")
    for gauge, value in now.held.items():
        if value > allowed.held.get(gauge, 0):
            found.append(f"{name} holds {value:g} {gauge}, {allowed.held.get(gauge, 0):g} before")
    return found


async def leases(world: World) -> list[str]:
    """Wait as long as a lease may run; return the sessions that are claimed still."""
    await asyncio.sleep(LEASE_SECONDS)
    store = world.store()
    now = (await store.time())[0] * 1000
    found = []
    async for key in store.scan_iter(match="specdec:*:meta", count=1000):
        if int(await store.hget(key, "lease_until") or 0) > now:
            found.append(f"{key.decode()} is claimed though nothing is under way")
    return found
