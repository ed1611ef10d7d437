"""A soak run as tables."""

from rich import box
from rich.console import Console
from rich.table import Table

from tests.soak.run import Result


def show(result: Result, seed: int, console: Console) -> None:
    """Print who came, what became of what each process held, and what does not hold."""
    console.print(_visits(result))
    console.print(_growths(result))
    for name in dict.fromkeys(name for (name, _), each in result.growths.items() if not each.flat):
        if more := result.more.get(name):
            console.print(f"{name} has more of: " + ", ".join(f"{count} {of}" for of, count in more), soft_wrap=True)
    for line in result.violations:
        console.print(f"VIOLATION: {line}", soft_wrap=True, markup=False)
    verdict = f"{len(result.violations)} violations" if result.violations else "everything stayed flat"
    console.print(f"{verdict}; {result.answers} answers in {result.seconds:.0f} s, seed {seed}")


def _visits(result: Result) -> Table:
    table = Table("visitors who", "", box=box.SIMPLE, title="load")
    for way, number in result.visits.items():
        table.add_row(way.value, str(number))
    return table


def _growths(result: Result) -> Table:
    table = Table(
        "process", "quantity", "level", "grown", "allowed", "", box=box.SIMPLE, title="levels after warming up"
    )
    for (name, quantity), each in result.growths.items():
        figures = (f"{each.level:,.1f}", f"{each.grown:+,.1f}", f"{each.allowed:,.1f}")
        table.add_row(
            name, f"{quantity} (MiB)" if quantity == "memory" else quantity, *figures, "flat" if each.flat else "GROWS"
        )
    return table
