"""What is done to the system, drawn from a seed: which fault, to whom, at which phase of a round."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from itertools import product
from random import Random

COORDINATORS = ("coordinator-0", "coordinator-1")
DRAFTS = ("draft-0", "draft-1")
TARGETS = ("target-0", "target-1")
PROCESSES = (*COORDINATORS, *DRAFTS, *TARGETS, "redis")
# Shorter than a pass of the target: a process is killed while it works on the call.
KILL_MILLISECONDS = (0, 15)
# From less than a pass to more than the coordinators' time limits of a call.
DELAY_MILLISECONDS = (5, 80, 800, 4000)


class Phase(StrEnum):
    """What is under way at the moment of a fault."""

    IDLE = "idle"
    PROPOSING = "proposing"
    VERIFYING = "verifying"
    COMMITTING = "committing"
    STREAMING = "streaming"


class Kind(StrEnum):
    """What happens."""

    KILL = "SIGKILL, start"
    PAUSE = "SIGSTOP past the lease, SIGCONT"
    DELAY = "call late"
    CUT = "connection cut, call lost"
    CUT_ANSWER = "connection cut, answer lost"
    REPEAT = "call repeated"
    FORGET = "SIGKILL, start without the file"
    OLDER = "SIGKILL, start with a file of before"
    RESTART = "SIGTERM, start"


WIRE = (Kind.DELAY, Kind.CUT, Kind.CUT_ANSWER, Kind.REPEAT)
CALLS = (Phase.PROPOSING, Phase.VERIFYING, Phase.COMMITTING, Phase.STREAMING)


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that happens.

    Attributes:
        kind: what.
        victim: the process; for faults of the wire the coordinator whose call is hit.
        phase: when.
        milliseconds: between the call and the fault; of a late call, how late.
    """

    kind: Kind
    victim: str
    phase: Phase
    milliseconds: int = 0


def role(process: str) -> str:
    """Return what a process is: coordinator, draft, target or redis."""
    return process.partition("-")[0]


def full_plan(seed: int) -> list[Fault]:
    """Return more than 200 faults: every process at every phase, every fault of the wire at every call.

    The sessions that Redis loses come first and a rolling restart of all after it, so that no cache of theirs is left.
    The last part ends neither coordinators nor model servers: what leaks in them shows at the end.
    """
    random = Random(seed)
    kills = [_kill(random, *each) for each in product(PROCESSES, Phase)]
    early = [*kills, *(_kill(random, *each) for each in product(PROCESSES, Phase)), *_wire(random), *_pauses()]
    early += [Fault(kind, "redis", phase) for kind, phase in product((Kind.FORGET, Kind.OLDER), Phase)]
    middle = [_kill(random, *each) for each in product(PROCESSES, Phase)]
    late = [*_wire(random), *_pauses(), *(_kill(random, "redis", phase) for phase in Phase)]
    parts = [_shuffled(random, part) for part in (early, middle, late)]
    return [*parts[0], *_rolling(), *parts[1], *_rolling(), *parts[2]]


def short_plan(seed: int) -> list[Fault]:
    """Return one fault of each kind, with every role and every phase of a kill among them."""
    random = Random(seed)
    phases = _shuffled(random, Phase)
    victims = [random.choice(COORDINATORS), random.choice(DRAFTS), random.choice(TARGETS), "redis", TARGETS[0]]
    early = [_kill(random, victim, phase) for victim, phase in zip(victims, phases, strict=True)]
    early += [Fault(kind, "redis", random.choice(CALLS)) for kind in (Kind.FORGET, Kind.OLDER)]
    wire = {fault.kind: fault for fault in _shuffled(random, _wire(random)) if fault.milliseconds < 1000}
    late = [*wire.values(), random.choice(list(_pauses()))]
    rolling = [Fault(Kind.RESTART, victim, Phase.STREAMING) for victim in (COORDINATORS[0], *DRAFTS, *TARGETS)]
    return [*_shuffled(random, early), *rolling, *_shuffled(random, late)]


def _kill(random: Random, victim: str, phase: Phase) -> Fault:
    return Fault(Kind.KILL, victim, phase, random.randint(*KILL_MILLISECONDS))


def _pauses() -> Iterable[Fault]:
    return (Fault(Kind.PAUSE, victim, phase) for victim, phase in product(COORDINATORS, Phase))


def _rolling() -> Iterable[Fault]:
    return (Fault(Kind.RESTART, victim, Phase.STREAMING) for victim in PROCESSES)


def _wire(random: Random) -> Iterable[Fault]:
    """Every fault of the wire at every call; an event to a client has no answer that could be lost."""
    for kind, victim, phase in product(WIRE, COORDINATORS, CALLS):
        if (kind, phase) != (Kind.CUT_ANSWER, Phase.STREAMING):
            most = DELAY_MILLISECONDS if kind is Kind.DELAY else (0, 10, 50)
            yield Fault(kind, victim, phase, random.choice(most))


def _shuffled(random: Random, faults: Iterable[Fault] | Iterable[Phase]) -> list:
    mixed = list(faults)
    random.shuffle(mixed)
    return mixed
