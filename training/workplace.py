"""Where a draft is made: a folder beside the one it will be, which takes its name when all is done."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from training.atomic_files import replaced

SETTINGS = "settings.json"
DRAFT = "draft"


def workplace(out: Path, settings: Mapping[str, Any]) -> Path:
    """Return the folder to work in: a new one, or that of a broken run with the same settings.

    Args:
        out: where the draft will be.
        settings: what the work that is kept depends on, as JSON has it.

    Raises:
        FileExistsError: there is something in out already, or the work beside it is not of these settings.
    """
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise FileExistsError(f"{out} is there already: choose another folder, or remove it")
    work = out.with_name(f"{out.name}.unfinished")
    if not work.exists():
        work.mkdir(parents=True)
        with replaced(work / SETTINGS) as path:
            path.write_text(json.dumps(settings, indent=1))
    if changed := _changed(work / SETTINGS, settings):
        raise FileExistsError(f"{work} is the work of another run ({changed}): repeat that one, or remove the folder")
    return work


def _changed(path: Path, settings: Mapping[str, Any]) -> str:
    """Say what differs from the settings in a file, nothing where they agree."""
    if not path.is_file():
        return f"it has no {path.name}"
    found = json.loads(path.read_text())
    names = sorted(name for name in {*found, *settings} if found.get(name) != settings.get(name))
    return ", ".join(f"{name} {found.get(name)} instead of {settings.get(name)}" for name in names)


def finish(work: Path, out: Path) -> None:
    """Give the draft its place and remove what was needed to make it."""
    if out.exists():
        out.rmdir()
    (work / DRAFT).rename(out)
    shutil.rmtree(work)
