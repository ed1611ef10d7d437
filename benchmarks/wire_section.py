"""The ``wire`` benchmark's report in words and tables, made from its JSON alone."""

from typing import Any

from benchmarks.output import Grid
from benchmarks.surroundings import in_words
from benchmarks.wording import against_goal, counted, number

MESSAGES = ("ProposeRequest", "ProposeResponse", "VerifyRequest", "VerifyResponse")
CONNECTIONS = ("draft", "target", "redis")
ROUNDS_A_CORE = 500  # that a coordinator should carry
PROCESSES = ("coordinator", "draft", "target", "redis")


def section(report: dict[str, Any]) -> str:
    """Return the Markdown section of RESULTS.md."""
    parts = ["## Bytes and CPU time of a round", in_words(report), _how(report), goals(report)]
    parts += [grid.markdown() for grid in grids(report)]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def goals(report: dict[str, Any]) -> str:
    """Return the paragraph that compares what is carried with the goal, and bytes of short contexts with long ones."""
    runs = [(f"{counted(run['coordinators'], 'coordinator')}, γ {run['gamma']}", run) for run in report["carried"]]
    carried = {name: run["rounds_a_core"] for name, run in runs}
    by_size: dict[int, list[float]] = {}
    for cell in report["cells"]:
        by_size.setdefault(cell["support_size"], []).append(sum(cell["bytes"].values()))
    spread = max(max(sizes) / min(sizes) - 1 for sizes in by_size.values())
    what = "What a core of the coordinators carries, in rounds a second,"
    return (
        f"Goals: {against_goal(what, carried, ROUNDS_A_CORE)} "
        f"At each k the bytes of a round differ by {100 * spread:.1f} % at most between the contexts." + _two(report)
    )


def _two(report: dict[str, Any]) -> str:
    """Say what a second coordinator brought, and how much of the machine was busy with it and without."""
    by_gamma: dict[int, dict[int, dict[str, Any]]] = {}
    for run in report["carried"]:
        by_gamma.setdefault(run["gamma"], {})[run["coordinators"]] = run
    said = ""
    for gamma, runs in by_gamma.items():
        if {1, 2} <= runs.keys():
            one, two = (sum(runs[number]["cores"].values()) for number in (1, 2))
            said += (
                f" With γ {gamma} two coordinators carry {runs[2]['rounds_a_second'] / runs[1]['rounds_a_second']:.2f} "
                f"times as much as one: {', '.join(runs[2]['cores'])} keep {two:.2f} of the machine's "
                f"{counted(report['machine']['logical_cores'], 'core')} busy then, and {one:.2f} with one."
            )
    return said


def grids(report: dict[str, Any]) -> list[Grid]:
    """Return all tables, for a terminal."""
    return [_bytes(report), _cpu(report), _carried(report)]


def _how(report: dict[str, Any]) -> str:
    settings = report["settings"]
    return (
        f"γ = {settings['gamma']}, instant synthetic models. **Messages** are weighed serialised, as means over "
        f"{settings['weighed_rounds']} rounds after the first, which carries the prompt; k is the number of tokens "
        "that a draft token's distribution has at most (DRAFT_SUPPORT_SIZE). **On the connections** are all bytes of "
        "TCP between the coordinator and the others, headers of HTTP/2 and trace context included, both directions "
        f"together, over answers of about {settings['rounds']} rounds. CPU time is that of whole processes, one "
        "session alone. **Carried** is what a coordinator brings through when "
        f"{counted(settings['sessions'], 'session')} at a time keep it busy, on a machine that it shares with the "
        "models, Redis and the client: "
        "**a core** is a second of the coordinators' CPU time."
    )


def _bytes(report: dict[str, Any]) -> Grid:
    header = ["k, context", *MESSAGES, *(f"{name}'s connection" for name in CONNECTIONS)]
    rows = [
        [
            _case(cell),
            *(number(cell["messages"][name], 0) for name in MESSAGES),
            *(number(cell["bytes"][name], 0) for name in CONNECTIONS),
        ]
        for cell in report["cells"]
    ]
    return Grid("Bytes of a round", header, rows)


def _cpu(report: dict[str, Any]) -> Grid:
    rows = [[_case(cell), *(number(cell["cpu_ms"][name], 2) for name in PROCESSES)] for cell in report["cells"]]
    return Grid("CPU milliseconds of a round", ["k, context", *PROCESSES], rows)


def _case(cell: dict[str, Any]) -> str:
    return f"{cell['support_size']}, {cell['context']}"


def _carried(report: dict[str, Any]) -> Grid:
    header = ["coordinators, γ", "sessions", "rounds a second", "rounds a core", "cores of the coordinators"]
    header += ["of the draft", "of the target", "of Redis", "of the client"]
    rows = [
        [
            f"{run['coordinators']}, {run['gamma']}",
            str(run["sessions"]),
            number(run["rounds_a_second"], 0),
            number(run["rounds_a_core"], 0),
            *(number(run["cores"].get(name), 2) for name in ("coordinators", "draft", "target", "redis", "client")),
        ]
        for run in report["carried"]
    ]
    return Grid("What coordinators carry", header, rows)
