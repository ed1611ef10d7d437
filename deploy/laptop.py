"""The whole system on one machine: ``python -m deploy.laptop demo|up|down``, behind the make targets of those names."""

import argparse
import logging
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from deploy.pairs import DEFAULT_PAIR, PAIRS, SYNTHETIC, Pair, chosen_pair, prepare, usual_environment
from deploy.process import StartFailed
from deploy.system import GRACE_SECONDS, NAMES, Ports, System, processes_in, refuse_closed_doors

DEFAULT_PROMPT = "Why is the sky blue? Explain it to a child."
UP_PORTS = Ports(
    calls={"coordinator": 50051, "draft": 50052, "target": 50053},
    metrics={"coordinator": 9051, "draft": 9052, "target": 9053},
)
# Weights from a hub may have to be downloaded first.
START_SECONDS = 3600.0
INTERRUPTED = 130
TERMINATED = 143

# Gamma is set: left to the server it would end up at 0 where a draft does not pay, and a demo is to show rounds.
DEMO_FLAGS = ("--show-tokens", "--compare", "--gamma", "4", "--max-new-tokens", "128")


def demo(pair: Pair, prompt: str, flags: list[str]) -> int:
    """Run the system on free ports, answer one prompt, and end everything.

    Args:
        pair: the models.
        prompt: to answer.
        flags: for ``specdec generate`` in place of the usual ones.

    Returns:
        The client's exit status. Logs are kept when it is not 0.
    """
    prepare(pair.target, pair.draft)
    Path(".run").mkdir(exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="demo-", dir=".run"))
    usual = DEMO_FLAGS if pair.target.startswith(SYNTHETIC) else ("--chat", *DEMO_FLAGS)  # those have no chat template
    try:
        with _system(folder, pair, Ports()) as system:
            command = [sys.executable, "-m", "client", "generate", "--address", system.address("coordinator")]
            status = subprocess.run([*command, *(flags or usual), "--", prompt], check=False).returncode
    except (KeyboardInterrupt, SystemExit):
        shutil.rmtree(folder)
        raise
    if status == 0:
        shutil.rmtree(folder)
    else:
        print(f"logs are in {folder}", file=sys.stderr)
    return status


def up(folder: Path, pair: Pair, ports: Ports) -> int:
    """Leave the system running.

    Args:
        folder: for logs, pid files and Redis' data.
        pair: the models.
        ports: where to listen.

    Returns:
        0, also when it is up already.
    """
    system = _system(folder, pair, ports)
    if all(process.record() for process in system.processes.values()):
        print("already up; `make down` first to change anything")
    else:
        system.stop()  # what an earlier system left
        prepare(pair.target, pair.draft)
        system.start()
    _describe(system)
    return 0


def down(folder: Path) -> int:
    """End what ``up`` started; nothing else is touched.

    Returns:
        0, also when nothing runs.
    """
    ended = [name for name, process in reversed(processes_in(folder).items()) if process.end(GRACE_SECONDS)]
    print(f"ended {', '.join(ended)}" if ended else "nothing was running")
    return 0


def _system(folder: Path, pair: Pair, ports: Ports) -> System:
    environment = {name: value for name, value in usual_environment(pair).items() if name not in os.environ}
    models = {"target": pair.target, "draft": pair.draft}
    return System(folder, **models, ports=ports, environment=environment, start_seconds=START_SECONDS)


def _describe(system: System) -> None:
    for name, process in system.processes.items():
        record = process.record()
        if record:
            metrics = f"metrics {record.metrics_port}" if record.metrics_port else ""
            print(f"  {name:<12} port {record.port:<6} {metrics:<13} log {process.log}")
    coordinator = system.processes["coordinator"].record()
    if coordinator:
        call = f"localhost:{coordinator.port} specdec.v1.GenerationService/Generate"
        print(f"""try  {_grpcurl()} -plaintext -d '{{"prompt": "The capital of France is"}}' {call}""")
    print("end  make down")


def _grpcurl() -> str:
    beside_python = Path(sys.executable).with_name("grpcurl")
    return shlex.quote(str(beside_python)) if beside_python.exists() else "grpcurl"


def _parse(argv: list[str]) -> argparse.Namespace:
    models = argparse.ArgumentParser(add_help=False)
    models.add_argument("--pair", choices=PAIRS, default=DEFAULT_PAIR, help="target and draft by name (%(default)s)")
    models.add_argument("--target", default="", help="in place of the pair's; alone, the draft becomes a lookup")
    models.add_argument("--draft", default="", help="in place of the pair's")
    place = argparse.ArgumentParser(add_help=False)
    place.add_argument("--folder", type=Path, default=Path(".run"), help="for logs, pid files and Redis' data")

    parser = argparse.ArgumentParser(prog="python -m deploy.laptop", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("demo", parents=[models], help="answer one prompt, then end everything")
    one.add_argument("--prompt", default="", help=f"to answer ({DEFAULT_PROMPT})")
    one.add_argument("flags", nargs="*", help="after --: for `specdec generate`, in place of the usual ones")
    leave = commands.add_parser("up", parents=[models, place], help="leave the system running")
    for name in NAMES:
        usual = UP_PORTS.calls.get(name, 0)
        leave.add_argument(f"--{name}-port", type=int, default=usual, help="(%(default)s; 0 takes a free one)")
    for name in UP_PORTS.metrics:
        usual = UP_PORTS.metrics[name]
        leave.add_argument(f"--{name}-metrics-port", type=int, default=usual, help="(%(default)s; 0 is off)")
    commands.add_parser("down", parents=[place], help="end what up started")
    return parser.parse_args(argv)


def _run(options: argparse.Namespace) -> int:
    if options.command == "down":
        return down(options.folder)
    refuse_closed_doors(os.environ)
    pair = chosen_pair(options.pair, options.target, options.draft)
    if options.command == "demo":
        return demo(pair, options.prompt or DEFAULT_PROMPT, options.flags)
    given = vars(options)
    ports = Ports(
        calls={name: given[f"{name}_port"] for name in NAMES},
        metrics={name: given[f"{name}_metrics_port"] for name in UP_PORTS.metrics},
    )
    return up(options.folder, pair, ports)


def main(argv: list[str] | None = None) -> int:
    """Run a command and return its exit status; whatever stops a demo, the system ends with it."""
    logging.basicConfig(format="%(message)s", level=logging.INFO)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(TERMINATED))
    try:
        return _run(_parse(sys.argv[1:] if argv is None else argv))
    except StartFailed as failure:
        print(failure, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
