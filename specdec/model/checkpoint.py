"""From what a person writes to a folder with configuration, weights and tokenizer."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import huggingface_hub
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

from specdec.model.embedded import EMBEDDED, embedded_gguf
from specdec.model.gguf_conversion import converted_folder
from specdec.model.refusal import ModelRefused

EMBEDDED_PREFIX = "embedded:"
LAYERS = re.compile(r"layers:(\d+):(.+)")
HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
HUB_FILES = ["*.json", "*.safetensors", "*.jinja", "*.model", "*.txt"]
HUB_COPIES = ["consolidated*", "*/*"]  # the same weights once more, in other layouts


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A model's files.

    Attributes:
        folder: holds config.json, *.safetensors and the tokenizer's files.
        tokenizer: where another process finds the tokenizer: the folder, or the hub id it came from.
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
        model: ``embedded:smollm2``, a .gguf file, a folder with safetensors or one GGUF file, or a hub id.

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
    if HUB_ID.fullmatch(model):
        return _from_hub(model)
    raise ModelRefused(f"{model}: no such file or folder, and no hub id (owner/name) either")


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


def _from_hub(hub_id: str) -> Checkpoint:
    try:
        folder = Path(huggingface_hub.snapshot_download(hub_id, allow_patterns=HUB_FILES, ignore_patterns=HUB_COPIES))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ModelRefused(f"{hub_id}: no such folder here, and not to be had from the hub: {reason}") from error
    if not any(folder.glob("*.safetensors")):
        raise ModelRefused(f"{hub_id} has no *.safetensors; download what it has and name the file")
    return Checkpoint(folder, hub_id)
