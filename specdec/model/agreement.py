"""A check at load time: the packed pass must say what the model itself says.

Architectures differ in ways that no configuration tells (biases on the scores, positions, layers that keep something
else). Two short sessions, fed in pieces and cut, are compared with the model's own attention before anything is served.
"""

import logging

import torch

from specdec.model.attention import RAGGED, groupings
from specdec.model.causal_lm import CausalLM
from specdec.model.language_model import Segment
from specdec.model.refusal import ModelRefused

PROBE_LENGTH = 9
# Largest relative difference, in the norm of all rows: rounding stays far below, another attention far above.
# transformers' own attention rounds to float32 within, float64 models too.
TOLERANCE = {torch.float64: 1e-5, torch.float32: 1e-3, torch.bfloat16: 1e-1, torch.float16: 3e-2}

_logger = logging.getLogger(__name__)


def check_agreement(model: CausalLM) -> None:
    """Compare ragged, chunked and cut feeding with the unbatched network, and choose the calls of attention.

    The best calls that the device has serve, unless they fail or say something else here: then the next ones do, which
    is logged. On the CPU there is one way.

    Raises:
        ModelRefused: the logits differ, a layer keeps no keys and values, or the pass fails.
    """
    *better, surest = groupings(model.device, model.network.dtype)
    for grouping in better:
        model.grouping = grouping
        try:
            _check(model)
        except ModelRefused as refusal:
            _logger.warning("attention falls back to calls that are slower: %s", refusal)
        else:
            return
    model.grouping = surest
    _check(model)


def _check(model: CausalLM) -> None:
    length = min(PROBE_LENGTH, model.context_length)
    probes = [[(seed + 7919 * place) % model.vocabulary_size for place in range(length)] for seed in (11, 5003)]
    try:
        found, expected = _ragged(model, probes), _unbatched(model, probes)
    except (RuntimeError, TypeError, ValueError, NotImplementedError, AttributeError) as error:
        raise ModelRefused(f"{model.name} cannot be run in {model.network.dtype}: {error}") from error
    difference = relative_difference(found, expected)
    if not difference <= TOLERANCE[model.network.dtype]:
        raise ModelRefused(
            f"{model.name}: its logits in a packed pass differ from its own by {difference:.1e} of their norm; "
            "its attention is of a kind that is not supported"
        )


def relative_difference(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Return how far logits are from those expected, relative to their norm; NaN where either is no number."""
    known = ~(found.isneginf() & expected.isneginf())  # a cut head says of the other tokens never
    return float((found - expected)[known].norm() / expected[known].norm())


def _ragged(model: CausalLM, probes: list[list[int]]) -> torch.Tensor:
    """Return the logits of the probes' last positions, after a prefill side by side, a cut and a second pass."""
    caches = [model.new_cache() for _ in probes]
    middle = (len(probes[0]) + 1) // 2
    model.forward([Segment(caches[0], probes[0][:middle], 0), Segment(caches[1], probes[1], 1)])
    caches[1].cut(len(probes[1]) - 1)
    if caches[0].layer_count != model.network.config.get_text_config(decoder=True).num_hidden_layers:
        raise ModelRefused(f"{model.name}: {caches[0].layer_count} of its layers keep keys and values, not all")
    rest = [Segment(caches[1], probes[1][-1:], 1)]
    if probes[0][middle:]:
        rest.insert(0, Segment(caches[0], probes[0][middle:], 1))
    return torch.cat(model.forward(rest))


@torch.inference_mode()
def _unbatched(model: CausalLM, probes: list[list[int]]) -> torch.Tensor:
    """Return the same rows from the network's own attention."""
    model.network.set_attn_implementation("eager")
    try:
        rows = [
            model.network(input_ids=torch.tensor([probe], device=model.device), use_cache=False).logits[0, -1:]
            for probe in probes
        ]
    finally:
        model.network.set_attn_implementation(RAGGED)
    return torch.cat(rows)[:, : model.vocabulary_size]
