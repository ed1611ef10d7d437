"""Unpacks a GGUF file once into a safetensors folder, so that every later start takes seconds.

The weights become float32: of the quantised formats' products of scale and integer only that holds them exactly, so the
text is the one of the file. transformers would otherwise unpack them anew at each start, the tokenizer included.
"""

import sys
import tempfile
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from specdec.model.cache_folder import cache_folder, locked
from specdec.model.fingerprint import file_digest
from specdec.model.gguf_tokenizer import read_end_tokens, read_tokenizer
from specdec.model.refusal import ModelRefused, refuse_unsupported

CONVERSION = 2  # raise it when what is written changes: folders of older numbers are left alone
SPECIAL_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")


def converted_folder(path: Path) -> Path:
    """Return the safetensors folder of a GGUF file, written when it is not there yet.

    Safe when several processes ask at once: one writes, beside the final place, the others wait.

    Args:
        path: the GGUF file.

    Raises:
        ModelRefused: the file cannot be read, or the model cannot be served.
    """
    folder = cache_folder() / f"{path.stem}-{file_digest(path).hex()[:12]}-{CONVERSION}"
    if folder.is_dir():
        return folder
    with locked(folder):
        if not folder.is_dir():
            _write_beside(path, folder)
    return folder


def _write_beside(path: Path, folder: Path) -> None:
    """Convert into a temporary folder that takes the final name only when it is complete."""
    megabytes = path.stat().st_size / 1e6
    sys.stderr.write(f"unpacking {path.name} ({megabytes:.0f} MB) into {folder}: once, about a minute for 500 MB\n")
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as temporary:
        written = Path(temporary) / "model"
        written.mkdir()
        try:
            _convert(path, written)
        except (OSError, ValueError, KeyError, NotImplementedError, SafetensorError) as error:
            raise ModelRefused(f"{path} cannot be unpacked: {error}") from error
        written.rename(folder)


def _convert(path: Path, folder: Path) -> None:
    """Write config.json, model.safetensors, generation_config.json and the tokenizer's files."""
    config = AutoConfig.from_pretrained(path.parent, gguf_file=path.name, trust_remote_code=False)
    if hasattr(config, "quantization_config"):
        del config.quantization_config  # the weights written here are plain
    refuse_unsupported(str(path), config)
    with torch.device("meta"):  # the names of its parameters are all that is needed of it
        network = AutoModelForCausalLM.from_config(config)
    weights = load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=network)["tensors"]
    save_file({name: tensor.float().contiguous() for name, tensor in weights.items()}, folder / "model.safetensors")
    config.dtype = "float32"
    config.eos_token_id = read_end_tokens(path)
    config.architectures = [type(network).__name__]
    config.save_pretrained(folder)
    GenerationConfig(**{name: getattr(config, name) for name in SPECIAL_IDS}).save_pretrained(folder)
    read_tokenizer(path).save_pretrained(folder)
