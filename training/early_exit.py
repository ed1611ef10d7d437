"""Leaves a network after its first layers: what is read there, and the draft that is built of it.

A draft of N layers keeps the target's embeddings and first N layers, but for the down projection of the last of them,
which is fitted anew. Its final norm only divides by the root mean square, and its head is the target's head times an
exit map: so it is a plain checkpoint of the target's architecture.
"""

import copy
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
import transformers

from specdec.model.language_model import Segment
from training.answers import Answer
from training.network_end import NetworkEnd, reading

PASS_TOKENS = 2048


@dataclass(frozen=True, slots=True)
class ExitStates:
    """What stands before every token of some answers, at the end of layer N and at the target's own end.

    The state after the layer is ``middle + D inner``, where D is the layer's down projection.

    Attributes:
        middle: [answer tokens, hidden] the state before the down projection is added.
        inner: [answer tokens, intermediate] what the down projection reads.
        last: [answer tokens, hidden] the target's last state, after its final norm.
    """

    middle: torch.Tensor
    inner: torch.Tensor
    last: torch.Tensor


class EarlyExit:
    """The place behind a network's layer N.

    Attributes:
        end: the network's.
        layer: N.
        projection: [hidden, intermediate] float64, the layer's down projection D; without columns where the layer's is
            no linear map whose result is added, as in a mixture of experts. Then middle is the state after the layer.
    """

    def __init__(self, end: NetworkEnd, layer: int) -> None:
        """Leave after layer, 1 for the first, up to all."""
        self.end = end
        self.layer = layer
        self._module = end.added_projection(layer)
        hidden = end.head.weight.shape[1]
        self.projection = (
            torch.zeros(hidden, 0, dtype=torch.float64, device=end.model.device)
            if self._module is None
            else self._module.weight.detach().double()
        )

    def states(self, answers: Sequence[Answer]) -> ExitStates:
        """Read what precedes the tokens of answers, at least one, in one pass."""
        seen: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
        modules = {"layer": self.end.layers[self.layer - 1], "norm": self.end.norm, "projection": self._module}
        with ExitStack() as stack:
            for name, module in modules.items():
                if module is not None:
                    stack.enter_context(reading(module, lambda *pair, name=name: seen.update({name: pair})))
            model = self.end.model
            model.forward([Segment(model.new_cache(), answer.token_ids[:-1], 0) for answer in answers])
        after, last = seen["layer"][1], seen["norm"][1]
        inner, added = seen.get("projection", (after[:, :0], torch.zeros_like(after)))
        before = torch.cat([torch.arange(len(one.token_ids) - 1) >= one.prompt_length - 1 for one in answers])
        kept = before.to(model.device)
        return ExitStates((after - added)[kept], inner[kept], last[kept])

    def draft(self, head: torch.Tensor, projection: torch.Tensor) -> Any:
        """Build the network of the first N layers.

        Args:
            head: [rows of the target's head, hidden], exit map included.
            projection: in the place of the attribute.

        Returns:
            A transformers causal LM of the target's class with a head of its own and transformers' own attention, on
            the target's device, in its dtype.
        """
        network = self.end.model.network
        config = copy.deepcopy(network.config)
        config.num_hidden_layers, config.tie_word_embeddings = self.layer, False
        if getattr(config, "layer_types", None):
            config.layer_types = config.layer_types[: self.layer]
        loader: Any = transformers.AutoModelForCausalLM
        draft = loader.from_config(config, dtype=network.dtype, attn_implementation="sdpa").to(network.device)
        names = {module: name for name, module in network.named_modules()}
        state = {name: network.state_dict()[name] for name in draft.state_dict()}
        state[f"{names[self.end.norm]}.weight"] = self.end.plain_norm.weight
        state[f"{names[self.end.head]}.weight"] = head.to(network.dtype)
        if self._module is not None:
            state[f"{names[self._module]}.weight"] = projection.to(network.dtype)
        draft.load_state_dict(state)
        return draft.eval()


def batches(answers: Sequence[Answer]) -> Iterator[list[Answer]]:
    """Yield the answers in order, in batches of at most PASS_TOKENS tokens or of one answer."""
    batch: list[Answer] = []
    for answer in answers:
        if batch and sum(len(one.token_ids) for one in [*batch, answer]) > PASS_TOKENS:
            yield batch
            batch = []
        batch.append(answer)
    if batch:
        yield batch
