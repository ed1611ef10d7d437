"""Systems whose services are stopped and started again, also while answers are being made."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from uuid import uuid4

import grpc

from deploy.system import MODULES, NAMES, Ports, System
from tests.e2e.calls import Caller, token_ids_of
from tests.ports import holding_port

BEGUN = 3  # tokens that every answer has when the service is killed


@contextmanager
def restartable(folder: Path, **settings) -> Iterator[System]:
    """Run a system of which nobody else gets a port while one of its processes is down."""
    with ExitStack() as stack:
        calls, metrics = ({name: stack.enter_context(holding_port()) for name in names} for names in (NAMES, MODULES))
        yield stack.enter_context(System(folder, ports=Ports(calls, metrics), **settings))


def answers_across_a_restart(system: System, name: str, requests) -> list[list[int]]:
    """Return the answers to requests that run at once while a service is killed and started again.

    Every second client leaves at that moment. Those that left, or whose stream is broken, come back with resume_from.
    """
    requests = [request | {"session_id": f"across-{uuid4().hex}"} for request in requests]
    before = Caller(system.address("coordinator"))
    streams = [before.stream(**request) for request in requests]
    with ThreadPoolExecutor(len(requests)) as pool:
        begun = list(pool.map(_begin, streams))
        system.kill(name)
        for stream in streams[::2]:
            stream.cancel()
        system.start_service(name)
        system.wait_joined()
        after = Caller(system.address("coordinator"))
        ids = [request["session_id"] for request in requests]
        rests = list(pool.map(_go_on, [after] * len(streams), streams, begun, ids))
    # Some that came back went on by new rounds: the service was killed within their answers.
    assert sum(resumed and any(event.HasField("round") for event in events) for events, resumed in rests) >= 2
    before.channel.close()
    after.channel.close()
    return [token_ids_of([*events, *more]) for events, (more, _) in zip(begun, rests, strict=True)]


def _begin(stream):
    """Read the first events of a stream."""
    events = []
    for event in stream:
        events.append(event)
        if len(token_ids_of(events)) >= BEGUN:
            break
    return events


def _go_on(caller, stream, events, session_id):
    """Return the rest of an answer, and whether that took coming back for it."""
    more = []
    try:
        for event in stream:
            more.append(event)
    except grpc.RpcError:
        seen = len(token_ids_of([*events, *more]))
        return [*more, *caller.events(session_id=session_id, resume_from=seen)], True
    return more, False
