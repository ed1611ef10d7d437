"""Times passes of one model under every quantisation, in turns, and compares the distributions that come of them."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from tokenizers import Tokenizer

from benchmarks.speculation import spread
from specdec.model.language_model import LanguageModel, Segment
from specdec.sampling import distributions
from training.answers import PLAIN

FIRST_TOKENS = 5  # of a text: nothing is asked after so little


@dataclass(frozen=True, slots=True)
class Timing:
    """What the timed passes are.

    Attributes:
        tokens: fed in a pass, ascending from 1.
        context: tokens in the cache before it.
        seconds: of all passes together, about.
    """

    tokens: tuple[int, ...]
    context: int
    seconds: float


def time_passes(
    models: Mapping[str, LanguageModel], timing: Timing, advance: Callable[[float], None]
) -> dict[str, dict[int, list[float]]]:
    """Return the seconds of each pass by model and tokens, at least one; a lap times every pass once.

    Args:
        models: by name.
        timing: what to time.
        advance: is told, after each lap, the seconds it took.
    """
    caches = {name: model.new_cache() for name, model in models.items()}
    for name, model in models.items():
        model.forward([Segment(caches[name], _tokens(model, timing.context), 0)])
        for count in timing.tokens:
            _time_one(model, caches[name], count)  # the first of its shape is slower
    found: dict[str, dict[int, list[float]]] = {name: {count: [] for count in timing.tokens} for name in models}
    spent = 0.0
    while spent < timing.seconds:
        began = time.perf_counter()
        for name, model in models.items():
            _time_one(model, caches[name], 1)  # the first after another model's is slower, by up to a half
            for count in timing.tokens:
                found[name][count].append(_time_one(model, caches[name], count))
        lap = time.perf_counter() - began
        spent += lap
        advance(lap)
    return found


def _time_one(model: LanguageModel, cache: Any, count: int) -> float:
    length, tokens = cache.length, _tokens(model, count)
    began = time.perf_counter()
    model.forward([Segment(cache, tokens, count)])
    took = time.perf_counter() - began
    cache.cut(length)
    return took


def _tokens(model: LanguageModel, count: int) -> list[int]:
    return [7919 * place % model.vocabulary_size for place in range(1, count + 1)]


def cost_figures(seconds: Mapping[int, Sequence[float]]) -> list[dict[str, Any]]:
    """Return by tokens the milliseconds of a pass and how they compare with one token's, by fastest and by median."""
    one = seconds[1]
    return [
        {
            "tokens": count,
            "passes": len(times),
            "fastest_ms": 1000 * min(times),
            "ms": spread([1000 * value for value in times]),
            "of_one": statistics.median(times) / statistics.median(one),
            "fastest_of_one": min(times) / min(one),
        }
        for count, times in seconds.items()
    ]


def encoded(model: LanguageModel, tokenizer: Tokenizer, texts: Sequence[str], longest: int) -> list[list[int]]:
    """Return texts as tokens of the model, cut to a length; none is so short that it says nothing."""
    found = [tokenizer.encode(text).ids[: min(longest, model.context_length)] for text in texts]
    return [tokens for tokens in found if len(tokens) > FIRST_TOKENS]


def rows_of(model: LanguageModel, texts: Sequence[Sequence[int]]) -> list[torch.Tensor]:
    """Return by text the distributions after its first tokens, [positions, vocabulary], from one pass."""
    return [_plain(model.forward([Segment(model.new_cache(), text, len(text) - FIRST_TOKENS)])[0]) for text in texts]


def rows_one_by_one(model: LanguageModel, text: Sequence[int]) -> torch.Tensor:
    """Return the same of one text, fed one token a pass."""
    cache = model.new_cache()
    model.forward([Segment(cache, text[:FIRST_TOKENS], 0)])
    return _plain(torch.cat([model.forward([Segment(cache, [token], 1)])[0] for token in text[FIRST_TOKENS:]]))


def _plain(logits: torch.Tensor) -> torch.Tensor:
    return distributions(logits, [PLAIN] * len(logits))


def distances(found: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> dict[str, float]:
    """Say how far distributions are from those expected: total variation, divergence (nats) and likeliest tokens."""
    q, p = torch.cat(list(found)).double(), torch.cat(list(expected)).double()
    variation = (p - q).abs().sum(-1) / 2
    terms = torch.where(p > 0, p * (p.log() - q.log()), 0.0)
    same = p.max(-1).indices == q.max(-1).indices
    return {
        "positions": len(p),
        "total_variation": variation.mean().item(),
        "largest_total_variation": variation.max().item(),
        "divergence": terms.sum(-1).mean().item(),
        "same_likeliest": same.double().mean().item(),
    }
