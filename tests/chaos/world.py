"""The whole system with two of each service, every path of it led over a link or proxy of ours."""

import asyncio
import hashlib
import shutil
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from signal import Signals

import redis.asyncio

from coordinator import scripts
from tests.chaos.call_proxy import CallProxy
from tests.chaos.history import History
from tests.chaos.link import Link, redis_link
from tests.chaos.plan import COORDINATORS, DRAFTS, TARGETS
from tests.chaos.processes import ServiceProcess
from tests.chaos.recorder import Recorder
from tests.chaos.underway import Watch
from tests.redis_server import RedisServer, running_redis

# Four tokens decide the next, so that greedy text does not run in small circles; passes are slow enough to cut in.
TARGET = "synthetic:seed=1,order=4,pass_ms=15"
DRAFT = "synthetic:seed=1,order=4,agreement=0.8,pass_ms=2"
LEASE_SECONDS = 2.0
# Of calls to the model services: some faults delay them for longer.
CALL_SECONDS = 3.0
DRAIN_SECONDS = 5
PEER_WAIT_SECONDS = 10.0


class World:
    """What faults are done to.

    Attributes:
        history: what is seen.
        watch: sees every call of a round.
        services: by name.
        redis: the Redis.
        fronts: where clients reach each coordinator, by its name.
    """

    def __init__(self, folder: Path, redis_server: RedisServer) -> None:
        """Start nothing yet."""
        self.history = History()
        self.watch = Watch()
        self.redis = redis_server
        self.services: dict[str, ServiceProcess] = {}
        self.fronts: dict[str, CallProxy] = {}
        self._folder = folder
        self._kept = folder / "kept"
        self._recorder = Recorder(self.history)
        self._proxies: dict[str, list[CallProxy]] = {}
        self._redis_links: list[Link] = []

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Start everything; end everything, whatever happens."""
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._end_all)
            self._ask_redis()
            for name in (*DRAFTS, *TARGETS):
                flags = {"model": DRAFT if name in DRAFTS else TARGET, "drain-seconds": DRAIN_SECONDS}
                self.services[name] = ServiceProcess(self._folder, name, flags)
                self._proxies[name] = [
                    await stack.enter_async_context(CallProxy(self.watch, coordinator, name))
                    for coordinator in COORDINATORS
                ]
                await self.start(name)
            for number, name in enumerate(COORDINATORS):
                await self._add_coordinator(stack, number, name)
            yield

    async def _add_coordinator(self, stack: AsyncExitStack, number: int, name: str) -> None:
        sha = hashlib.sha1(scripts.WRITE.encode()).hexdigest()
        to_redis = await stack.enter_async_context(redis_link(self.watch, name, sha))
        to_redis.to = self.redis.port
        self._redis_links.append(to_redis)
        self.fronts[name] = await stack.enter_async_context(CallProxy(self.watch, "client", name, self._recorder))
        self._proxies[name] = [self.fronts[name]]
        # Each prefers another replica, so that all are used.
        addresses = {
            group: ",".join(f"127.0.0.1:{self._proxies[each][number].link.port}" for each in names[:: 1 - 2 * number])
            for group, names in (("draft", DRAFTS), ("target", TARGETS))
        }
        self.services[name] = ServiceProcess(
            self._folder,
            name,
            {
                "draft-addresses": addresses["draft"],
                "target-addresses": addresses["target"],
                "redis-url": f"redis://127.0.0.1:{to_redis.port}/0",
                "lease-seconds": LEASE_SECONDS,
                "propose-timeout": CALL_SECONDS,
                "verify-timeout": CALL_SECONDS,
                "peer-wait-seconds": PEER_WAIT_SECONDS,
                "drain-seconds": DRAIN_SECONDS,
            },
        )
        await self.start(name)

    async def start(self, name: str) -> None:
        """Start a process and lead everybody there."""
        if name == "redis":
            await asyncio.to_thread(self.redis.start)
            self._ask_redis()
            return
        await asyncio.to_thread(self.services[name].start)
        for proxy in self._proxies[name]:
            await proxy.lead_to(self.services[name].port)

    async def start_redis_empty(self) -> None:
        """Start Redis without its file."""
        await asyncio.to_thread(self.redis.restart_empty)
        self._ask_redis()

    def keep_redis_file(self) -> None:
        """Copy what Redis has written so far."""
        shutil.copytree(self.redis.folder, self._kept, dirs_exist_ok=True)

    async def start_redis_older(self) -> None:
        """Start Redis with what was kept."""
        shutil.rmtree(self.redis.folder)
        shutil.move(self._kept, self.redis.folder)
        await self.start("redis")

    def kill_now(self, name: str) -> None:
        """Send SIGKILL and wait for nothing."""
        if name == "redis":
            self.redis.kill()
        else:
            self.services[name].send(Signals.SIGKILL)

    async def end(self, name: str, number: Signals) -> int:
        """End a process and return its exit status."""
        if name == "redis":
            await self._leave_redis()
            await asyncio.to_thread(self.redis.stop if number is Signals.SIGTERM else self.redis.kill)
            return 0
        return await asyncio.to_thread(self.services[name].end, number)

    def redis_ports(self) -> set[int]:
        """Return where coordinators reach Redis."""
        return {link.port for link in self._redis_links}

    def store(self) -> redis.asyncio.Redis:
        """Return the Redis of now, beside all links."""
        assert self._recorder.store is not None
        return self._recorder.store

    async def _end_all(self) -> None:
        for service in self.services.values():
            service.kill_if_running()
        await self._leave_redis()

    async def _leave_redis(self) -> None:
        store, self._recorder.store = self._recorder.store, None
        if store is not None:
            await store.aclose()

    def _ask_redis(self) -> None:
        self._recorder.store = redis.asyncio.Redis.from_url(self.redis.url)


@asynccontextmanager
async def world(folder: Path) -> AsyncIterator[World]:
    """Run a whole system that logs into a folder."""
    with running_redis(append_only=True) as redis_server:
        made = World(folder, redis_server)
        async with made.running():
            yield made
