"""Leaves a network after its first layers: what its end must be, what is read there, and the draft built of it.

A draft of N layers keeps the target's embeddings and first N layers. Its final norm only divides by the root mean
square, and its head is the target's head times an exit map: so it is a plain checkpoint of the target's architecture.
"""

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import transformers

from specdec.model.causal_lm import CausalLM
from specdec.model.language_model import LanguageModel, Segment
from specdec.model.refusal import ModelRefused
from training.answers import Answer

PASS_TOKENS = 2048
_PROBE = (5, 1, 7, 3, 2)
_TOLERANCE = 1e-2  # relative: bfloat16 rounds by 4e-3, another formula differs by far more


@dataclass(frozen=True, slots=True)
class NetworkEnd:
    """The last steps of a network: layers, then a norm by the root mean square, then a linear head without bias.

    Attributes:
        model: the network with its ragged pass.
        layers: its layers.
        norm: the final norm.
        head: the output head.
        plain_norm: the norm with the weight that only divides by the root mean square: the draft's.
    """

    model: CausalLM
    layers: torch.nn.ModuleList
    norm: torch.nn.Module
    head: torch.nn.Linear
    plain_norm: torch.nn.Module

    def states(self, layer: int, answers: Sequence[Answer]) -> tuple[torch.Tensor, torch.Tensor]:
        """Read what precedes every answer token after a layer and at the end, in one pass.

        Args:
            layer: 1 for the first, up to all.
            answers: at least one.

        Returns:
            The states after the layer as the draft's norm gives them, and the target's after its final norm; both
            [answer tokens, hidden], in the order of the answers.
        """
        seen: dict[str, torch.Tensor] = {}
        with _reading(self.layers[layer - 1], seen, "exit"), _reading(self.norm, seen, "last"):
            caches = [self.model.new_cache() for _ in answers]
            self.model.forward([Segment(c, a.token_ids[:-1], 0) for c, a in zip(caches, answers, strict=True)])
        before = [
            torch.arange(len(answer.token_ids) - 1, device=self.model.device) >= answer.prompt_length - 1
            for answer in answers
        ]
        kept = torch.cat(before)
        with torch.inference_mode():
            return self.plain_norm(seen["exit"][kept]), seen["last"][kept]


def network_end(model: LanguageModel) -> NetworkEnd:
    """Find a network's last steps, and check by a pass that they are what they must be.

    Raises:
        ModelRefused: the model is no network of layers, or ends in another way.
    """
    network = getattr(model, "network", None)
    body = getattr(network, "model", None)
    layers, norm = getattr(body, "layers", None), getattr(body, "norm", None)
    head = network.get_output_embeddings() if network is not None else None
    if not (isinstance(model, CausalLM) and isinstance(layers, torch.nn.ModuleList) and norm is not None):
        raise ModelRefused(
            f"{model.name}: no early-exit draft can be made of it: it has no model.layers and model.norm"
        )
    if not isinstance(head, torch.nn.Linear) or getattr(head, "bias", None) is not None:
        raise ModelRefused(f"{model.name}: no early-exit draft can be made of it: its head is not linear without bias")
    plain = _plain_norm(model, norm)
    seen: dict[str, torch.Tensor] = {}
    with _reading(norm, seen, "last"):
        tokens = [token % model.vocabulary_size for token in _PROBE]
        (logits,) = model.forward([Segment(model.new_cache(), tokens, len(tokens))])
    with torch.inference_mode():
        if not _close(head(seen["last"])[:, : model.vocabulary_size].to(logits.dtype), logits):
            raise ModelRefused(f"{model.name}: no early-exit draft can be made of it: it scales or caps its logits")
    return NetworkEnd(model, layers, norm, head, plain)


def batches(answers: Sequence[Answer]) -> Iterator[list[Answer]]:
    """Yield the answers in order, in batches of about PASS_TOKENS tokens."""
    batch: list[Answer] = []
    for answer in answers:
        if batch and sum(len(one.token_ids) for one in [*batch, answer]) > PASS_TOKENS:
            yield batch
            batch = []
        batch.append(answer)
    if batch:
        yield batch


def early_exit(end: NetworkEnd, layer: int, head_weight: torch.Tensor) -> Any:
    """Build a draft of the first layers.

    Args:
        end: the target's.
        layer: how many layers to keep.
        head_weight: [rows of the target's head, hidden], exit map included.

    Returns:
        A transformers causal LM of the target's class with a head of its own and transformers' own attention, on the
        target's device, in its dtype.
    """
    network = end.model.network
    config = copy.deepcopy(network.config)
    config.num_hidden_layers, config.tie_word_embeddings = layer, False
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[:layer]
    loader: Any = transformers.AutoModelForCausalLM
    draft = loader.from_config(config, dtype=network.dtype, attn_implementation="sdpa").to(end.model.device)
    state = {name: network.state_dict()[name] for name in draft.state_dict()}
    names = {module: name for name, module in network.named_modules()}
    state[f"{names[end.norm]}.weight"] = end.plain_norm.weight
    state[f"{names[end.head]}.weight"] = head_weight.to(network.dtype)
    draft.load_state_dict(state)
    draft.generation_config = network.generation_config
    return draft.eval()


@contextmanager
def _reading(module: torch.nn.Module, seen: dict[str, torch.Tensor], name: str) -> Iterator[None]:
    """Keep a module's output, [tokens, hidden], under a name while the context lasts."""

    def keep(module: torch.nn.Module, given: Any, output: Any) -> None:  # noqa: ARG001
        seen[name] = (output[0] if isinstance(output, tuple) else output).squeeze(0)

    handle = module.register_forward_hook(keep)
    try:
        yield
    finally:
        handle.remove()


def _plain_norm(model: LanguageModel, norm: torch.nn.Module) -> torch.nn.Module:
    """Return the norm with the weight that leaves nothing but the division: ones, or zeros where it adds one itself."""
    plain: Any = copy.deepcopy(norm)
    if getattr(plain, "bias", None) is None and isinstance(getattr(plain, "weight", None), torch.nn.Parameter):
        states = torch.linspace(-3, 5, 3 * plain.weight.numel(), device=model.device, dtype=plain.weight.dtype)
        states = states.view(3, -1)
        divided = states / states.pow(2).mean(dim=-1, keepdim=True).sqrt()
        for weight in (1.0, 0.0):
            with torch.inference_mode():
                plain.weight.data.fill_(weight)
                if _close(plain(states), divided):
                    return plain.requires_grad_(requires_grad=False)  # type: ignore[no-any-return]
    raise ModelRefused(
        f"{model.name}: no early-exit draft can be made of it: its final norm is not one by the root mean square"
    )


def _close(found: torch.Tensor, expected: torch.Tensor) -> bool:
    return bool((found - expected).norm() <= _TOLERANCE * expected.norm())
