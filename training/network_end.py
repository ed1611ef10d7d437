"""The last steps of a network, found and checked by passes: what can be left early must end in a known way."""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from specdec.model.causal_lm import CausalLM
from specdec.model.language_model import LanguageModel, Segment
from specdec.model.refusal import ModelRefused

_PROBE = (5, 1, 7, 3, 2)
_TOLERANCE = 1e-2  # relative: bfloat16 rounds by 4e-3, another formula differs by far more


@dataclass(frozen=True, slots=True)
class NetworkEnd:
    """Layers, then a norm by the root mean square, then a linear head without bias.

    Attributes:
        model: the network with its ragged pass.
        layers: its layers.
        norm: the final norm.
        head: the output head.
        plain_norm: the norm with the weight that leaves nothing but the division: a draft's.
    """

    model: CausalLM
    layers: torch.nn.ModuleList
    norm: torch.nn.Module
    head: torch.nn.Linear
    plain_norm: torch.nn.Module

    def added_projection(self, layer: int) -> torch.nn.Linear | None:
        """Return a layer's down projection, None where what it gives is not simply added to the state.

        Args:
            layer: 1 for the first, up to all.
        """
        module: Any = self.layers[layer - 1]
        projection = getattr(getattr(module, "mlp", None), "down_proj", None)
        if not isinstance(projection, torch.nn.Linear) or getattr(projection, "bias", None) is not None:
            return None
        weight = projection.weight
        shift = torch.linspace(1, 5, weight.shape[0], device=weight.device, dtype=weight.dtype)
        plain = _probed(self.model, module)[0]
        with _hooked(projection, lambda given, output: output + shift):  # noqa: ARG005
            shifted = _probed(self.model, module)[0]
        return projection if _close(shifted - plain, shift.expand_as(plain)) else None


def network_end(model: LanguageModel) -> NetworkEnd:
    """Find a network's last steps, and check by a pass that they are what they must be.

    Raises:
        ModelRefused: the model is no network of layers, or ends in another way.
    """
    network = getattr(model, "network", None)
    body = getattr(network, "model", None)
    layers, norm = getattr(body, "layers", None), getattr(body, "norm", None)
    if not (isinstance(model, CausalLM) and isinstance(layers, torch.nn.ModuleList) and norm is not None):
        raise _refused(model, "it has no model.layers and model.norm")
    head = model.network.get_output_embeddings()
    if not isinstance(head, torch.nn.Linear) or getattr(head, "bias", None) is not None:
        raise _refused(model, "its head is not linear without bias")
    plain = _plain_norm(norm)
    if plain is None:
        raise _refused(model, "its final norm is not one by the root mean square")
    last, logits = _probed(model, norm)
    if not _close(_applied(head, last)[:, : model.vocabulary_size].to(logits.dtype), logits):
        raise _refused(model, "it scales or caps its logits")
    return NetworkEnd(model, layers, norm, head, plain)


@contextmanager
def reading(module: torch.nn.Module, keep: Callable[[torch.Tensor, torch.Tensor], None]) -> Iterator[None]:
    """Hand what a module is given and what it returns, [tokens, …] each, to a function while the context lasts."""

    def look(given: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
        keep(given.squeeze(0), output.squeeze(0))
        return output

    with _hooked(module, look):
        yield


@contextmanager
def _hooked(module: torch.nn.Module, change: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Iterator[None]:
    """Let a function of input and output replace a module's output while the context lasts."""
    handle = module.register_forward_hook(lambda _, given, output: change(given[0], output))
    try:
        yield
    finally:
        handle.remove()


def _probed(model: CausalLM, module: torch.nn.Module) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a module's output and the logits of a short pass."""
    seen: list[torch.Tensor] = []
    tokens = [token % model.vocabulary_size for token in _PROBE]
    with reading(module, lambda given, output: seen.append(output)):  # noqa: ARG005
        (logits,) = model.forward([Segment(model.new_cache(), tokens, len(tokens))])
    return seen[0], logits


def _plain_norm(norm: torch.nn.Module) -> torch.nn.Module | None:
    """Return the norm with a weight of ones, or of zeros where it adds one itself; None where none only divides."""
    plain: Any = copy.deepcopy(norm).requires_grad_(requires_grad=False)
    weight = getattr(plain, "weight", None)
    if weight is None or getattr(plain, "bias", None) is not None:
        return None
    states = torch.linspace(-3, 5, 3 * weight.numel(), device=weight.device, dtype=weight.dtype).view(3, -1)
    divided = states / states.pow(2).mean(dim=-1, keepdim=True).sqrt()
    for value in (1.0, 0.0):
        weight.fill_(value)
        if _close(_applied(plain, states), divided):
            return plain  # type: ignore[no-any-return]
    return None


@torch.inference_mode()
def _applied(module: torch.nn.Module, states: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = module(states)
    return result


def _close(found: torch.Tensor, expected: torch.Tensor) -> bool:
    return bool((found - expected).norm() <= _TOLERANCE * expected.norm())


def _refused(model: LanguageModel, reason: str) -> ModelRefused:
    return ModelRefused(f"{model.name}: no early-exit draft can be made of it: {reason}")
