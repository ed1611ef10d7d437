"""``make soak``: minutes of steady load; the exit status is 1 when something that is held grows."""

import argparse
import random
import shutil
import sys
import tempfile
from pathlib import Path

from rich.console import Console

from tests.soak.report import show
from tests.soak.run import run


def main() -> int:
    """Run and print."""
    parser = argparse.ArgumentParser("python -m tests.soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0, help="of load; 600 without")
    parser.add_argument("--seed", type=int, default=None, help="decides what is asked; another each time without")
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else random.randrange(2**32)
    print(f"seed {seed}", flush=True)
    folder = Path(tempfile.mkdtemp(prefix="soak-"))
    result = run(
        options.seconds,
        seed,
        folder,
        lambda gone: print(f"\r{gone:.0f} of {options.seconds:.0f} s", end="", flush=True),
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
