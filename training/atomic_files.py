"""Files that are there whole or not at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """Hand out a name beside path to write to; what was written takes path's place when the context ends well."""
    beside = path.with_name(f"{path.name}.part")
    yield beside
    with beside.open("rb") as written:
        os.fsync(written.fileno())  # or a crash of the machine could leave the new name without its content
    beside.replace(path)
