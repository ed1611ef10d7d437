"""Any benchmark by its name: ``python -m benchmarks load --quick``, behind ``make bench``."""

import ast
import importlib
import sys
from pathlib import Path

BENCHMARKS = ("pair", "overhead", "load", "wire", "pass_cost")


def main(arguments: list[str]) -> int:
    """Run the benchmark that the first argument names with the others; status 2 if there is none of that name."""
    name, *flags = arguments or [""]
    if name not in BENCHMARKS:
        sys.stderr.write(f"no benchmark is called {name!r}; there are\n" + "".join(map(_described, BENCHMARKS)))
        return 2
    status: int = importlib.import_module(f"benchmarks.{name}").main(flags)
    return status


def _described(name: str) -> str:
    # Read, not imported: that would load torch only to refuse a name.
    source = Path(__file__).with_name(f"{name}.py").read_text()
    summary, *_ = (ast.get_docstring(ast.parse(source)) or "").partition("\n")
    return f"  {name:<10} {summary}\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
