"""Runs a target under atheris, which looks for inputs that reach new code. libFuzzer's flags come behind the module."""

import importlib
import sys
from collections.abc import Callable, Sequence

import atheris


def run(fuzz: Callable[[bytes], None], modules: Sequence[str]) -> None:
    """Feed a target until libFuzzer's limits (``-max_total_time=10``, ``-runs=1000``) are reached; exits.

    Args:
        fuzz: takes one input; whatever it raises is a find, and the input is written to a file.
        modules: whose branches count as coverage.
    """
    for name in modules:
        for value in vars(importlib.import_module(name)).values():
            if getattr(value, "__module__", None) == name and hasattr(value, "__code__"):
                atheris.instrument_func(value)
    atheris.Setup(sys.argv, fuzz)
    atheris.Fuzz()
