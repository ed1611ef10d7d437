"""``make chaos``: more than 200 faults from a seed; the exit status is 1 when something does not hold."""

import argparse
import random
import shutil
import sys
import tempfile
from pathlib import Path

import uvloop
from rich.console import Console

from tests.chaos.plan import full_plan, short_plan
from tests.chaos.report import show
from tests.chaos.run import run


def main() -> int:
    """Run and print."""
    parser = argparse.ArgumentParser("python -m tests.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=None, help="decides the faults; another each time without")
    parser.add_argument("--short", action="store_true", help="one fault of each kind, as in `make test`")
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else random.randrange(2**32)
    print(f"seed {seed}", flush=True)
    plan = short_plan(seed) if options.short else full_plan(seed)
    folder = Path(tempfile.mkdtemp(prefix="chaos-"))
    result = uvloop.run(
        run(plan, seed, folder, lambda number: print(f"\rfault {number} of {len(plan)}", end="", flush=True))
    )
    print()
    show(result, seed, Console(width=120))
    if result.violations:
        print(f"logs: {folder}")
        return 1
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
