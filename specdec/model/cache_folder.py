"""Where weights that were fetched or unpacked once are kept, and how processes that want the same take turns."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from specdec.model.refusal import ModelRefused


def cache_folder() -> Path:
    """Return where weights are kept: ``$XDG_CACHE_HOME/specdec``, by default ``~/.cache/specdec``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "specdec"


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Let one process at a time make a file or folder; the lock ends with the process.

    Args:
        path: what is made; its folder is made here, and beside it lies the lock.

    Raises:
        ModelRefused: the folder cannot be made or written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.with_name(f".{path.name}.lock").open("w")
    except OSError as error:
        raise ModelRefused(f"{path.parent} cannot be written: {error.strerror}") from error
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
