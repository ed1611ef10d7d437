"""A run as a table."""

from collections import Counter

from rich import box
from rich.console import Console
from rich.table import Table

from tests.chaos.history import OK
from tests.chaos.plan import Kind, Phase, role
from tests.chaos.run import Result


def show(result: Result, seed: int, console: Console) -> None:
    """Print faults by kind and phase, what became of the requests, levels, and what does not hold."""
    console.print(_faults(result))
    console.print(_requests(result))
    console.print(_levels(result))
    for line in result.violations:
        console.print(f"VIOLATION: {line}", soft_wrap=True, markup=False)
    verdict = f"{len(result.violations)} violations" if result.violations else "everything held"
    console.print(f"{verdict}; {len(result.done)} faults in {result.seconds:.0f} s, seed {seed}")


def _faults(result: Result) -> Table:
    table = Table("fault", "of", *(phase.value for phase in Phase), "all", box=box.SIMPLE, title="faults")
    counts = Counter((fault.kind, role(fault.victim), fault.phase) for fault in result.done)
    for kind in Kind:
        for of in dict.fromkeys(role(fault.victim) for fault in result.done if fault.kind is kind):
            row = [counts[kind, of, phase] for phase in Phase]
            table.add_row(kind.value, of, *(str(count or "") for count in row), str(sum(row)))
    return table


def _requests(result: Result) -> Table:
    history = result.history
    ends = Counter(request.outcome for request in history.requests)
    lost = history.lost()
    table = Table("", "", box=box.SIMPLE, title="requests", show_header=False)
    rows = {
        "sessions": len({request.session_id for request in history.requests}),
        "answers had to their end": sum(each[-1].outcome == OK for each in history.turns().values()),
        "of them as in an undisturbed run": sum(
            request.outcome == OK and (request.ask, request.turn) in history.expected for request in history.requests
        ),
        "tokens shown": sum(len(request.tokens) for request in history.requests),
        "streams": len(history.streams),
        "resumptions by the client": sum(request.resumptions for request in history.requests),
        **{f"requests that failed with {code}": count for code, count in ends.items() if code != OK},
        "sessions that were there when Redis lost its file": len(lost),
        "of them gone": len(lost - history.stored.keys()),
    }
    for name, count in rows.items():
        table.add_row(name, str(count))
    return table


def _levels(result: Result) -> Table:
    table = Table("process", "descriptors before", "after", "to Redis", "held", box=box.SIMPLE, title="levels")
    for name, (before, after) in result.levels.items():
        held = ", ".join(f"{gauge.removeprefix('specdec_')} {value:g}" for gauge, value in after.held.items())
        table.add_row(name, str(before.descriptors), str(after.descriptors), str(after.to_redis), held)
    return table
