"""One model over several processes: the leader's passes are the followers' too, each with its share of the weights.

transformers shards the network by its own plan when it is loaded (``specdec.model.loading``); each process keeps the
keys and values of its own heads. What a follower must know of a pass is little: which caches are fed, what became of
them since, and the tokens. Followers never look at the logits.
"""

import logging
import os
import queue
import weakref
from collections.abc import Iterator, Sequence
from itertools import count, islice
from typing import Any

import torch
from transformers import PretrainedConfig
from transformers.distributed.tensor_parallel import get_kv_heads_per_rank

from specdec.model.causal_lm import CausalLM
from specdec.model.kv_arena import Arena, TensorCache
from specdec.model.language_model import Branches, Segment
from specdec.model.ranks import Ranks
from specdec.model.refusal import ModelRefused

NOTHING_ADOPTED = -1
FAILED = 1  # exit status

_logger = logging.getLogger(__name__)


class LedCache(TensorCache):
    """A cache of the leader: has a number, by which followers know theirs, and remembers what they must catch up on.

    Attributes:
        number: the same for the session's cache in every process.
        adopted: the branch entry that was adopted since the last pass; no second one can be.
    """

    def __init__(self, number: int, arena: Arena) -> None:
        """Start empty, unknown to the followers."""
        super().__init__(arena)
        self.number = number
        self.adopted = NOTHING_ADOPTED

    def adopt(self, index: int) -> None:
        """Make the path that ends at an entry the sequence, and forget all other branches."""
        if self.branches:
            self.adopted = index
        super().adopt(index)


class LeadingModel:
    """The leader's share of a model, which the engine runs like any other model.

    Attributes:
        description: see ``LanguageModel``, as the following.
        name: as it was asked for.
        vocabulary_size: real size.
        context_length: tokens a cache may hold.
        device: where this process's weights, caches and all logits live.
    """

    def __init__(self, model: CausalLM, ranks: Ranks) -> None:
        """Lead the processes that have loaded the same model and ``follow``."""
        self.description = model.description
        self.name = model.name
        self.vocabulary_size = model.vocabulary_size
        self.context_length = model.context_length
        self.device = model.device
        self._model = model
        self._ranks = ranks
        self._numbers = count()
        self._let_go: queue.SimpleQueue[int] = queue.SimpleQueue()

    def new_cache(self) -> LedCache:
        """Return an empty cache; the followers forget theirs when nobody holds it any more."""
        cache = LedCache(next(self._numbers), self._model.arena)
        weakref.finalize(cache, self._let_go.put, cache.number).atexit = False
        return cache

    def forward(self, segments: Sequence[Segment]) -> list[torch.Tensor]:
        """Feed every segment, in all processes; see ``CausalLM.forward``.

        A pass that fails after the followers were told ends the process: the next one would meet them in the middle of
        this one and compute nonsense. torchrun ends the others; callers find the connection closed and go elsewhere.

        Raises:
            ValueError: a segment is empty, asks for more rows than it feeds, or runs past the context.
        """
        for segment in segments:
            self._model.check(segment)
        try:
            self._ranks.tell(self._message(segments))
            return self._model.forward(segments)
        except Exception:
            _logger.critical("a pass failed, or a process is gone: the processes are out of step", exc_info=True)
            os._exit(FAILED)

    def _message(self, segments: Sequence[Segment]) -> list[int]:
        let_go = [self._let_go.get() for _ in range(self._let_go.qsize())]
        message = [len(let_go), *let_go, len(segments)]
        for segment in segments:
            message += _told(segment)
        return message


def _told(segment: Segment) -> list[int]:
    """Write what a follower must know of a segment, and take its cache as told."""
    cache: Any = segment.cache
    parents = segment.parents if isinstance(segment, Branches) else ()
    state = [cache.number, cache.adopted, cache.length, len(cache.branches)]
    cache.adopted = NOTHING_ADOPTED
    return [*state, segment.rows, len(segment.tokens), len(parents), *segment.tokens, *parents]


def follow(model: CausalLM, ranks: Ranks) -> None:
    """Run the leader's passes with this process's share of the model, until the leader says that it is over.

    Raises:
        LeaderLost: it never did.
    """
    caches: dict[int, TensorCache] = {}
    while message := ranks.hear():
        numbers = iter(message)
        for number in islice(numbers, next(numbers)):
            caches.pop(number, None)  # one that was never fed is not known here
        model.forward([_heard(numbers, model, caches) for _ in range(next(numbers))])


def _heard(numbers: Iterator[int], model: CausalLM, caches: dict[int, TensorCache]) -> Segment:
    """Read what ``_told`` wrote, and let the cache catch up."""
    number, adopted, length, branches, rows, fed, branching = islice(numbers, 7)
    cache = caches[number] = caches.get(number) or model.new_cache()
    if adopted != NOTHING_ADOPTED:
        cache.adopt(adopted)
    if not branches:
        cache.cut(length)
    if (cache.length, len(cache.branches)) != (length, branches):
        here = f"{cache.length} and {len(cache.branches)} tokens here"
        raise ValueError(f"cache {number} has {here}, {length} and {branches} in the leading process")
    tokens, parents = list(islice(numbers, fed)), list(islice(numbers, branching))
    return Branches(cache, tokens, rows, parents) if parents else Segment(cache, tokens, rows)


def refuse_unspreadable(model: str, config: PretrainedConfig, ranks: int) -> None:
    """Check that transformers can spread a model over so many processes.

    Args:
        model: what messages call it.
        config: its configuration.
        ranks: how many processes there are.

    Raises:
        ModelRefused: it has no plan for this architecture, or its heads cannot be shared out evenly.
    """
    text: Any = config.get_text_config(decoder=True)
    plan = text.base_model_tp_plan
    if not plan:
        raise ModelRefused(
            f"{model} ({config.model_type}) cannot be spread over {ranks} processes: transformers has no plan for it"
        )
    heads: int = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    if get_kv_heads_per_rank(plan, heads, ranks) is None:
        raise ModelRefused(f"{model}: its {heads} key-value heads cannot be shared out evenly to {ranks} processes")
