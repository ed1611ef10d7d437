"""What a draft costs and what it may bring: seconds of a pass, and the expected speed-up of the two together."""

from statistics import median
from time import perf_counter

from specdec.model.language_model import LanguageModel, Segment

CONTEXT = 64
PASSES = 20
MAX_GAMMA = 16


def pass_seconds(model: LanguageModel) -> float:
    """Return the median time of a pass of one token behind a short context, its logits read on the host."""
    cache = model.new_cache()
    tokens = [(7 * place + 3) % model.vocabulary_size for place in range(CONTEXT)]
    model.forward([Segment(cache, tokens, 0)])
    times = []
    for _ in range(PASSES):
        start = perf_counter()
        (logits,) = model.forward([Segment(cache, tokens[:1], 1)])
        logits[0, 0].item()
        times.append(perf_counter() - start)
        cache.cut(CONTEXT)
    return median(times)


def expected_speedup(acceptance: float, cost: float) -> tuple[float, int]:
    """Return the expected speed-up over plain decoding at the best gamma, 0 included, and that gamma.

    Args:
        acceptance: α, below 1.
        cost: seconds of a draft pass over seconds of a target pass.

    Source: Leviathan et al. 2023 (arXiv 2211.17192), theorem 3.8: passes alone, a target pass taking as long for many
    tokens as for one.
    """
    tokens = [sum(acceptance**kept for kept in range(gamma + 1)) for gamma in range(MAX_GAMMA + 1)]
    return max((made / (1 + gamma * cost), gamma) for gamma, made in enumerate(tokens))
