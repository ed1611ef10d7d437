"""Puts linear layers with fewer bits a weight in the place of a network's own: all of them, or the model is refused.

The law that is served is then that of the network with these layers, and its fingerprint says so. Embeddings, norms,
attention and caches stay in the network's dtype; a head that shares its weights with the embedding gets its own.
"""

from typing import Any

import torch

from specdec.model.quantized_linear import Float16Linear, Int8Linear
from specdec.model.refusal import ModelRefused

NONE, AUTO = "none", "auto"
LINEAR = {"float16": Float16Linear, "int8": Int8Linear}
QUANTIZATIONS = (NONE, *LINEAR)
KERNELS = "fbgemm"


def meant(quantization: str, device: torch.device, dtype: str) -> str:
    """Return what "auto" is here: float16, which hardly changes the law, where that can be had, else "none".

    Args:
        quantization: of QUANTIZATIONS, which come back as they are, or "auto".
        device: where the model shall run.
        dtype: of the rest of the network, by name.
    """
    if quantization != AUTO:
        return quantization
    can_be_had = KERNELS in torch.backends.quantized.supported_engines
    return "float16" if device.type == "cpu" and dtype in (AUTO, "float32") and can_be_had else NONE


def check_quantization(model: str, quantization: str, device: torch.device, dtype: str) -> None:
    """Find out, before any weights are read, whether they can be quantised here.

    Args:
        model: what messages call the model.
        quantization: of QUANTIZATIONS.
        device: where the model shall run.
        dtype: of the rest of the network, by name.

    Raises:
        ModelRefused: there is no such quantisation, or not here.
    """
    if quantization not in QUANTIZATIONS:
        raise ModelRefused(f"quantization {quantization!r}: there are {', '.join(QUANTIZATIONS)}")
    if quantization == NONE:
        return
    if device.type != "cpu":
        raise ModelRefused(f"{model}: quantization {quantization} is for CPUs, not for {device}; there, use none")
    if dtype == "float64":
        raise ModelRefused(f"{model}: quantization {quantization} computes in float32, which is less than float64")
    if KERNELS not in torch.backends.quantized.supported_engines:
        raise ModelRefused(f"{model}: quantization {quantization} needs torch with {KERNELS}: x86-64 with AVX2")


@torch.no_grad()
def quantize(model: str, network: Any, quantization: str) -> None:
    """Quantise every linear layer of a network, its head included, and let the float weights go.

    Args:
        model: what messages call the model.
        network: on a CPU, in evaluation mode.
        quantization: of QUANTIZATIONS; with "none" nothing changes.

    Raises:
        ModelRefused: the network has weights elsewhere than in plain linear layers and embeddings, or some that the
            format cannot hold.
    """
    if quantization == NONE:
        return
    for name, module in network.named_modules():
        _refuse_other_weights(model, name, module)
    for name, module in [found for found in network.named_modules() if type(found[1]) is torch.nn.Linear]:
        network.set_submodule(name, LINEAR[quantization](module))
    for parameter in network.parameters():
        parameter.data = parameter.data.clone()  # what is left shares the checkpoint's mapped file with what is gone


def _refuse_other_weights(model: str, name: str, module: torch.nn.Module) -> None:
    """Refuse matrices that are multiplied with in ways of their own: mixtures of experts, convolutions and the like."""
    if type(module) is torch.nn.Linear or isinstance(module, torch.nn.Embedding):
        return
    for own, parameter in module.named_parameters(recurse=False):
        if parameter.dim() > 1:
            raise ModelRefused(
                f"{model}: {name}.{own} lies in a {type(module).__name__}, which cannot be quantised; use none"
            )
