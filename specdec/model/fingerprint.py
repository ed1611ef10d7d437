"""Identity of a model's weights, read in milliseconds: sizes and samples of the files instead of all their bytes."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

FINGERPRINT_BYTES = 16
BLOCKS = 64
BLOCK_BYTES = 64 * 1024

# What transformers writes into config.json about the writing, not about the model.
_INCIDENTAL = {"_name_or_path", "_model_name_or_path", "transformers_version", "torch_dtype", "dtype"}


def model_fingerprint(config: Mapping[str, Any], files: Iterable[Path], dtype: str, variant: str) -> str:
    """Digest what decides a model's logits.

    Replicas agree when configuration, weights, dtype and variant do, wherever the files lie. Up to 4 MiB of each file
    are read, spread evenly: files of the same size that differ only outside the sampled blocks are taken for equal.

    Args:
        config: the checkpoint's configuration; what depends only on who wrote it is left out.
        files: the weight files; their names do not matter beyond the order.
        dtype: of the weights in memory.
        variant: what is served of the checkpoint, such as "layers:12"; empty for all of it.

    Returns:
        BLAKE2b of 16 bytes in hexadecimal.
    """
    digest = hashlib.blake2b(digest_size=FINGERPRINT_BYTES)
    kept = {key: value for key, value in config.items() if key not in _INCIDENTAL}
    digest.update(json.dumps([kept, dtype, variant], sort_keys=True).encode())
    for path in sorted(files):
        digest.update(file_digest(path))
    return digest.hexdigest()


def file_digest(path: Path) -> bytes:
    """Digest a file's size and up to 64 blocks of 64 KiB, the first and the last among them."""
    size = path.stat().st_size
    digest = hashlib.blake2b(str(size).encode(), digest_size=FINGERPRINT_BYTES)
    last = max(0, size - BLOCK_BYTES)
    with path.open("rb") as file:
        for offset in sorted({last * block // (BLOCKS - 1) for block in range(BLOCKS)}):
            file.seek(offset)
            digest.update(file.read(BLOCK_BYTES))
    return digest.digest()
