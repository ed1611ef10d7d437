"""Draft steps of static shapes: on CUDA a step is recorded once and then replayed in one launch.

A step of a small model is hundreds of kernels that take longer to launch than to run. All that is no step (prompts,
branches, large batches) is the model's ordinary pass, over the same caches.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from specdec.model.agreement import PROBE_LENGTH, TOLERANCE, relative_difference
from specdec.model.attention_calls import Span
from specdec.model.causal_lm import CausalLM, spans_of
from specdec.model.kv_arena import TensorCache
from specdec.model.kv_cache import STEP
from specdec.model.language_model import Branches, Segment
from specdec.model.recorders import Recorder, Work, recorder_of
from specdec.model.refusal import ModelRefused
from specdec.model.static_pass import Shape, StaticPass, packed_numbers, pages_of

MOST_FED = 2  # of a session: one token, and after a full accept the last draft token before it
MOST_TOKENS = 64  # of a step; beyond, computing takes longer than launching
MOST_PAGES = 512  # that a step's tokens read together; each layer copies them once


class StaticSteps:
    """A model whose steps have static shapes; a ``LanguageModel``.

    Shapes are powers of two within fixed bounds, so there are few; all share the memory for what goes in and comes out.

    Attributes:
        description: see ``LanguageModel``, as the following.
        name: of the model.
        vocabulary_size: real size.
        context_length: tokens a cache may hold.
        device: where logits live.
    """

    def __init__(
        self, model: CausalLM, room: int, new_recorder: Callable[[torch.device], Recorder] = recorder_of
    ) -> None:
        """Make room for all caches, and find out whether steps can be recorded and say what the model says.

        Args:
            model: has run a pass before.
            room: tokens that all caches may take room for. More can be had later, but then the arena is built anew and
                everything is recorded again.
            new_recorder: makes a recorder for the device.

        Raises:
            ModelRefused: its steps cannot be recorded, or differ from its ordinary passes.
        """
        self.description = model.description
        self.name = model.name
        self.vocabulary_size = model.vocabulary_size
        self.context_length = model.context_length
        self.device = model.device
        self._model = model
        self._new_recorder = new_recorder
        self._recorder = new_recorder(model.device)
        self._replays: dict[Shape, Work] = {}
        padding = model.new_cache()
        self._padding = Span(Segment(padding, [0], 0), padding, 0)
        most = Shape(MOST_TOKENS, MOST_PAGES // MOST_TOKENS)
        self._numbers = torch.zeros(sum(most.sizes), dtype=torch.long, device=self.device)
        self._logits = torch.zeros(MOST_TOKENS, self.vocabulary_size, dtype=model.logits_dtype, device=self.device)
        try:
            padding.reserve(1)
            model.new_cache().reserve(room)
            self._builds = model.arena.builds
            # The largest first: the others then find their memory among its.
            self._run([], Shape(MOST_TOKENS, min(most.pages, pages_of(self.context_length))))
            difference = relative_difference(*self._probe())
        except RuntimeError as error:
            raise ModelRefused(f"{self.name}: its draft steps cannot be recorded: {error}") from error
        if not difference <= TOLERANCE[model.network.dtype]:
            raise ModelRefused(
                f"{self.name}: the logits of its static steps differ from its own by {difference:.1e} of their norm"
            )

    def new_cache(self) -> TensorCache:
        """Return an empty cache, with nothing allocated yet."""
        return self._model.new_cache()

    @torch.inference_mode()
    def forward(self, segments: Sequence[Segment]) -> list[torch.Tensor]:
        """Feed every segment in one pass, a step if it is one; see ``CausalLM.forward``.

        Raises:
            ValueError: a segment is empty, asks for more rows than it feeds, or runs past the context.
        """
        shape = Shape.of(segments)
        if not _is_step(segments, shape):
            return self._model.forward(segments)
        for segment in segments:
            self._model.check(segment)
        spans = spans_of(segments)
        self._run(spans, shape)
        for span in spans:
            span.count()
        rows = [segment.rows for segment in segments]
        return list(self._logits[: sum(rows)].clone().split(rows))

    @torch.inference_mode()
    def _run(self, spans: Sequence[Span], shape: Shape) -> None:
        """Fill the buffer in and run a step. Rubbish is cleared outside of it: that is needed once after a cut."""
        rubbish = [row for span in (*spans, self._padding) for row in span.rubbish(shape.pages * STEP)]
        packed = packed_numbers(spans, shape, self._padding)
        cleared, numbers = self._model.sent([rubbish, packed])
        if rubbish:
            self._model.arena.clear(cleared)
        self._numbers[: len(packed)].copy_(numbers)
        self._replay(shape)()

    def _replay(self, shape: Shape) -> Work:
        """Return what runs a step of a shape over the arena's present tensors."""
        if self._builds != self._model.arena.builds:
            self._replays.clear()  # all old ones go before a new one is made, see GraphRecorder
            self._recorder = self._new_recorder(self.device)
            self._builds = self._model.arena.builds
        if shape not in self._replays:
            step = StaticPass(self._model, shape, self._numbers, self._logits)
            self._replays[shape] = self._recorder.record(step.run)
        return self._replays[shape]

    def _probe(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the logits of the same step from here and from the model: a first token, and one after others."""
        tokens = [(11 + 7919 * place) % self.vocabulary_size for place in range(min(PROBE_LENGTH, self.context_length))]
        caches = [self.new_cache(), self.new_cache()]
        if tokens[1:]:
            self._model.forward([Segment(caches[1], tokens[1:], 0)])
        found = []
        models: list[Any] = [self, self._model]
        for model in models:
            found.append(torch.cat(model.forward([Segment(cache, tokens[:1], 1) for cache in caches])))
            for cache in caches:
                cache.cut(cache.length - 1)
        return found[0], found[1]


def _is_step(segments: Sequence[Segment], shape: Shape) -> bool:
    """Tell draft steps from prompts, branches, and batches so large that launching is not what they cost."""
    plain = all(len(segment.tokens) <= MOST_FED and not isinstance(segment, Branches) for segment in segments)
    return plain and shape.tokens <= MOST_TOKENS and shape.tokens * shape.pages <= MOST_PAGES
