"""A student, its teacher and its optimiser: one step, and one measurement, over all processes of the run."""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from specdec.model.language_model import LanguageModel
from training.answers import Answer
from training.batches import answer_tokens, micro_batches, share
from training.distillation_settings import DistillationSettings
from training.process_group import summed
from training.soft_labels import plain_distributions, soft_labels, student_logits


class Learner:
    """What ``distill`` steps; every process of the run has one, and all take the same steps."""

    def __init__(
        self, student: Any, token_ids: torch.Tensor, teacher: LanguageModel, settings: DistillationSettings
    ) -> None:
        """Train a student with a head of the rows token_ids; the first process's weights go to all."""
        student.get_input_embeddings().requires_grad_(settings.train_embeddings)
        self._student = student
        self._token_ids = token_ids
        self._teacher = teacher
        self._settings = settings
        self._device: torch.device = student.device
        self._rank, self._devices = distributed.get_rank(), distributed.get_world_size()
        self._learning = {name: weight for name, weight in student.named_parameters() if weight.requires_grad}
        # No decay: it pulls to zero, and the start is better than zero.
        self._optimiser = torch.optim.AdamW(self._learning.values(), betas=(0.9, 0.95), weight_decay=0.0)
        self._parallel = DistributedDataParallel(student, gradient_as_bucket_view=True)

    def state(self) -> tuple[Mapping[str, torch.Tensor], Mapping[str, Any]]:
        """Return the weights that learn, by name, and the optimiser's state."""
        return {name: weight.detach() for name, weight in self._learning.items()}, self._optimiser.state_dict()

    def load_state(self, weights: Mapping[str, torch.Tensor], optimiser: Mapping[str, Any]) -> None:
        """Take up what state returned."""
        self.load_weights(weights)
        self._optimiser.load_state_dict(dict(optimiser))

    @torch.no_grad()
    def load_weights(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Take up the weights alone."""
        for name, weight in self._learning.items():
            weight.copy_(weights[name])

    def step(self, batch: Sequence[Answer], learning_rate: float) -> float:
        """Learn from a batch, of which each process takes its share.

        Returns:
            The batch's α before the step.

        Raises:
            RuntimeError: the gradient is not finite.
        """
        tokens = answer_tokens(batch)
        parts = micro_batches(share(batch, self._rank, self._devices), self._settings.micro_batch_tokens)
        kept = torch.zeros((), dtype=torch.float64, device=self._device)
        for number, part in enumerate(parts, start=1):
            # Gradients add up here and meet those of the other processes with the last part.
            with nullcontext() if number == len(parts) else self._parallel.no_sync():
                overlaps = self._overlaps(self._parallel, part)
                # The parallel model takes the mean over the processes; this makes it the mean over the batch's tokens.
                (-overlaps.sum() * self._devices / tokens).backward()
            kept += overlaps.detach().sum()
        torch.nn.utils.clip_grad_norm_(self._learning.values(), self._settings.gradient_clip, error_if_nonfinite=True)
        for group in self._optimiser.param_groups:
            group["lr"] = learning_rate
        self._optimiser.step()
        self._optimiser.zero_grad()
        return summed(kept).item() / tokens

    @torch.no_grad()
    def measure(self, answers: Sequence[Answer]) -> float:
        """Return α: the mean of Σ min(p, q) over all tokens of the answers."""
        kept = torch.zeros((), dtype=torch.float64, device=self._device)
        for part in micro_batches(share(answers, self._rank, self._devices), self._settings.micro_batch_tokens):
            kept += self._overlaps(self._student, part).sum()
        return summed(kept).item() / answer_tokens(answers)

    def _overlaps(self, student: torch.nn.Module, part: Sequence[Answer]) -> torch.Tensor:
        """Return Σ min(p, q), [answers' tokens] float32: what the target would keep of the student's draft tokens."""
        labels = soft_labels(self._teacher, part, self._token_ids)
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._device.type == "cuda"):
            logits = student_logits(student, part, self._device)
        return torch.minimum(labels, plain_distributions(logits)).sum(dim=-1)
