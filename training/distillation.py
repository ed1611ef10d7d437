"""Trains a draft to say what its target says: knowledge distillation on the target's own answers.

The student is given the teacher's whole distribution (soft labels) at every position of an answer, cut to the tokens
that the student knows. The loss is their total variation, 1 − Σ min(p, q): the probability that the target rejects a
draft token, which is what a draft is for. Cross entropy, the usual loss, fits the tail as hard as the rest: after a
start in closed form it fell for 45,000 tokens while α stayed where it was. The result is the best point of the curve,
of which the start is one: training never makes a draft worse.

Source: Hinton et al. 2015 (arXiv 1503.02531); for drafts, on the target's own text and with total variation among
others, Zhou et al. 2023 (2310.08461).
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from specdec.model.language_model import LanguageModel
from training.answers import Answer
from training.batches import answer_tokens, shuffled, step_batch
from training.checkpoints import Checkpoint, best_checkpoint, latest_checkpoint, write_checkpoint
from training.curve import Point, write_curve
from training.distillation_settings import DistillationSettings
from training.learner import Learner
from training.learning_head import learning_head
from training.training_progress import TrainingProgress

FREE = {"micro_batch_tokens", "checkpoint_every"}  # may change when a training goes on


def distill(
    student: Any,
    token_ids: torch.Tensor,
    teacher: LanguageModel,
    answers: Sequence[Answer],
    held_out: Sequence[Answer],
    settings: DistillationSettings,
    folder: Path,
) -> list[Point]:
    """Train a draft in place, or go on with a training that was broken off; to be called within ``process_group``.

    With several processes each calls it with the same arguments; the student of the first counts. Weights narrower than
    float32 become float32; on CUDA the passes run in bfloat16 all the same.

    Args:
        student: a transformers causal LM with a head of its own and transformers' own attention, on its device.
        token_ids: [K] int64, the rows of the head that train: the tokens the draft knows.
        teacher: the target, on the same device.
        answers: what to learn from.
        held_out: what to measure on; of other prompts.
        settings: how.
        folder: for checkpoints and the curve; all processes must see the same one.

    Returns:
        The curve. The student has the weights of its best point.

    Raises:
        ModelRefused: a checkpoint in the folder cannot be read, or is of a training of another draft or of other
            settings, answers or tokens; or the draft's head is tied to its embeddings.
        ValueError: answers or held_out are empty.
        RuntimeError: the gradient is not finite; the last checkpoint stays.
    """
    if not (answers and held_out):
        raise ValueError("a draft needs answers to learn from and others to be measured on")
    folder.mkdir(parents=True, exist_ok=True)
    # Without dropout: soft labels are no noise to guard against, and no random state has to be kept.
    student.to(torch.promote_types(student.dtype, torch.float32)).eval()
    token_ids = token_ids.to(student.device)
    with learning_head(student, token_ids):
        origin = _origin(student, token_ids, answers, held_out, settings)
        learner = Learner(student, token_ids, teacher, settings)
        reached = latest_checkpoint(folder, origin, student.device)
        if reached is None:
            start = Point(0, 0, learner.measure(held_out))
            reached = _saved(folder, Checkpoint(origin, [start], 0, *learner.state()))
        else:
            learner.load_state(reached.weights, reached.optimiser)
        curve = _train(learner, reached, answers, held_out, settings, folder)
        learner.load_weights(best_checkpoint(folder, curve, student.device).weights)
    return curve


def _train(
    learner: Learner,
    reached: Checkpoint,
    answers: Sequence[Answer],
    held_out: Sequence[Answer],
    settings: DistillationSettings,
    folder: Path,
) -> list[Point]:
    """Go on from a checkpoint to the end; return the curve."""
    curve, seen = list(reached.curve), reached.answers
    step, tokens = curve[-1].step, curve[-1].tokens
    order = shuffled(answers, settings.seed, seen)
    with TrainingProgress(curve[-1], settings.train_tokens, silent=distributed.get_rank() != 0) as progress:
        while tokens < settings.train_tokens:
            batch = step_batch(order, settings.batch_tokens, distributed.get_world_size())
            step, tokens, seen = step + 1, tokens + answer_tokens(batch), seen + len(batch)
            progress.advance(tokens, learner.step(batch, settings.learning_rate_at(tokens)))
            if step % settings.checkpoint_every == 0 or tokens >= settings.train_tokens:
                curve.append(Point(step, tokens, learner.measure(held_out)))
                _saved(folder, Checkpoint(reached.origin, curve, seen, *learner.state()))
                progress.reach(curve[-1])
        progress.end(curve)
    return curve


def _saved(folder: Path, checkpoint: Checkpoint) -> Checkpoint:
    """Let the first process write what all have reached, and the others wait for it."""
    if distributed.get_rank() == 0:
        write_checkpoint(folder, checkpoint)
        write_curve(checkpoint.curve, folder)
    distributed.barrier()
    return checkpoint


def _origin(
    student: torch.nn.Module,
    token_ids: torch.Tensor,
    answers: Sequence[Answer],
    held_out: Sequence[Answer],
    settings: DistillationSettings,
) -> Mapping[str, Any]:
    """Return what decides the course of a training, by the names a person would look for."""
    parts = {
        "draft": [(name, tuple(parameter.shape)) for name, parameter in student.named_parameters()],
        "token ids": token_ids.tolist(),
        "answers": list(answers),
        "held-out answers": list(held_out),
    }
    digests = {name: hashlib.sha256(repr(part).encode()).hexdigest() for name, part in parts.items()}
    return digests | {name: value for name, value in asdict(settings).items() if name not in FREE}
