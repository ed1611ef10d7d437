"""One soak run: the whole system under steady load, what it holds sampled over time, and what is left in the end."""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from signal import Signals

import redis

from tests.chaos.levels import gauges
from tests.chaos.plan import COORDINATORS, DRAFTS, TARGETS
from tests.redis_server import running_redis
from tests.soak.growth import WARM_SHARE, Growth, growths
from tests.soak.load import Load, Way
from tests.soak.observed import MEBIBYTE, ObservedProcess
from tests.tiny_models import write_tiny_model

LAYERS = 2
DRAIN_SECONDS = 5
LEASE_SECONDS = 5.0
# Sessions and caches reach their level well within the time to warm up, of a run of ten minutes.
SESSION_SECONDS = 20.0
IDLE_SECONDS = 10.0
MAX_SESSIONS = 32
SETTLE_SECONDS = 30.0
POLL_SECONDS = 0.2
SAMPLES = 120
LEAST_INTERVAL_SECONDS = 1.0
MOST_TYPES = 8

Sample = tuple[float, dict[tuple[str, str], float]]


@dataclass(frozen=True, slots=True)
class Result:
    """What a run found.

    Attributes:
        seconds: under load.
        visits: by way.
        answers: had to their end.
        growths: by process and quantity.
        more: types of which a process held more at the end than when it was warm, most first, by process.
        violations: what does not hold, one line each.
    """

    seconds: float
    visits: Counter[Way]
    answers: int
    growths: dict[tuple[str, str], Growth]
    more: dict[str, list[tuple[str, int]]]
    violations: list[str]


class Soaked:
    """The running system."""

    def __init__(self, services: dict[str, ObservedProcess], store: redis.Redis) -> None:
        """Take what runs."""
        self.services = services
        self._store = store

    def sample(self) -> dict[tuple[str, str], float]:
        """Return what everybody holds, by process and quantity."""
        held = {(name, what): each for name, one in self.services.items() for what, each in one.held().items()}
        told = self._store.info()
        return held | {
            ("redis", "memory"): told["used_memory"] / MEBIBYTE,
            ("redis", "descriptors"): told["connected_clients"],
            ("redis", "keys"): self._store.dbsize(),
        }

    def left(self) -> list[str]:
        """Return what is held though nobody has been there for longer than a session is kept."""
        found = []
        if keys := self._store.dbsize():
            found.append(f"redis holds {keys} keys")
        for name, service in self.services.items():
            for gauge, value in gauges(service.metrics_port).items():
                if value and gauge != "specdec_sessions":  # caches stay warm until another session needs the room
                    found.append(f"{name} holds {value:g} {gauge}")
        return found


@contextmanager
def soaked(folder: Path, leaking: str) -> Iterator[Soaked]:
    """Run two of each service on free ports; the one that is named leaks."""
    target = write_tiny_model(folder / "model", layers=LAYERS)
    services: dict[str, ObservedProcess] = {}
    with ExitStack() as stack:
        server = stack.enter_context(running_redis())

        def start(name: str, flags: dict[str, object]) -> None:
            service = ObservedProcess(folder, name, {"drain-seconds": DRAIN_SECONDS} | flags, leaks=name == leaking)
            stack.callback(service.kill_if_running)
            service.start()
            services[name] = service

        limits = {"max-sessions": MAX_SESSIONS, "session-idle-seconds": IDLE_SECONDS}
        for name in TARGETS:
            start(name, {"model": target, **limits})
        for name in DRAFTS:
            start(name, {"model": f"layers:1:{target}", **limits})
        for number, name in enumerate(COORDINATORS):
            # Each prefers another replica, so that all are used.
            addresses = {
                group: ",".join(f"127.0.0.1:{services[each].port}" for each in names[:: 1 - 2 * number])
                for group, names in (("target-addresses", TARGETS), ("draft-addresses", DRAFTS))
            }
            kept = {"session-ttl": SESSION_SECONDS, "lease-seconds": LEASE_SECONDS}
            start(name, {"redis-url": server.url, **addresses, **kept})
        with redis.Redis.from_url(server.url) as store:
            yield Soaked(services, store)


def run(
    seconds: float, seed: int, folder: Path, tell: Callable[[float], None] = lambda _: None, leaking: str = ""
) -> Result:
    """Soak for so long; ``tell`` hears the seconds gone, and the process named ``leaking`` leaks for a control."""
    with soaked(folder, leaking) as system:
        load = Load([f"127.0.0.1:{system.services[name].port}" for name in COORDINATORS], seed)
        load.start()
        try:
            samples, more = _watched(system, seconds, tell)
        finally:
            load.end()
        found = growths(samples)
        grown = [
            f"{what} of {name} grew by {each.grown:.4g}, {each.allowed:.4g} is allowed"
            for (name, what), each in found.items()
            if not each.flat
        ]
        violations = [*load.failures, *grown, *_left(system), *_ended(system)]
        return Result(seconds, load.visits, load.answers, found, more, violations)


def _watched(
    system: Soaked, seconds: float, tell: Callable[[float], None]
) -> tuple[list[Sample], dict[str, list[tuple[str, int]]]]:
    """Sample for so long; return the samples, and the types of which there is more at the end than when it was warm."""
    began, samples = time.monotonic(), []
    warm: dict[str, Counter[str]] = {}
    while (gone := time.monotonic() - began) < seconds:
        tell(gone)
        samples.append((gone, system.sample()))
        if not warm and gone >= WARM_SHARE * seconds:
            warm = {name: service.types() for name, service in system.services.items()}
        time.sleep(max(LEAST_INTERVAL_SECONDS, seconds / SAMPLES))
    more = {name: (service.types() - warm[name]).most_common(MOST_TYPES) for name, service in system.services.items()}
    return samples, more


def _left(system: Soaked) -> list[str]:
    """Wait as long as a session is kept, and a little; return what is held still."""
    deadline = time.monotonic() + SESSION_SECONDS + SETTLE_SECONDS
    while (found := system.left()) and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
    return found


def _ended(system: Soaked) -> list[str]:
    """End all in order; return who did not end so."""
    statuses = {name: service.end(Signals.SIGTERM) for name, service in system.services.items()}
    return [f"{name} ended with {status}" for name, status in statuses.items() if status != 0]
