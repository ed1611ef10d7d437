"""The way from a target to a draft, step by step; ``make_draft`` is its command."""

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

import torch
from torch import distributed

from specdec.model.checkpoint import find_checkpoint, split_layers
from specdec.model.language_model import LanguageModel
from specdec.model.loading import load_model
from specdec.model.refusal import ModelRefused
from training.asker import Asker
from training.corpus import Corpus, CorpusSettings, ask, read_corpus
from training.curve import best
from training.distillation import distill
from training.distillation_settings import DistillationSettings
from training.draft_folder import model_card, write_draft, written_licence
from training.draft_tokens import coverage, kept_tokens
from training.early_exit import EarlyExit
from training.exit_map import fit_exit_map
from training.network_end import network_end
from training.trial import Trial, tried
from training.workplace import DRAFT, finish, workplace

TRAINING = "training"
CURVE = ("curve.jsonl", "curve.svg")


@dataclass(frozen=True, slots=True)
class DraftSettings:
    """What draft to make.

    Attributes:
        layers: of the target's, to keep.
        vocabulary: tokens that the head knows at most.
        corpus: what to ask the target.
        training: how to train after the fit; None: not at all.

    Raises:
        ValueError: a number is out of its range.
    """

    layers: int = 2
    vocabulary: int = 8192
    corpus: CorpusSettings = field(default_factory=CorpusSettings)
    training: DistillationSettings | None = None

    def __post_init__(self) -> None:
        """Check the numbers that can be checked without the target."""
        if self.layers < 1 or self.vocabulary < 1:
            raise ValueError("layers and vocabulary must be at least 1")


@dataclass(frozen=True, slots=True)
class Made:
    """A draft that is done.

    Attributes:
        trial: what it is worth.
        facts: how it was made, in words.
        seconds: what the steps took, by name.
    """

    trial: Trial
    facts: list[str]
    seconds: dict[str, float]


def made_draft(target: LanguageModel, out: Path, settings: DraftSettings) -> Made:
    """Make a draft, or go on where a broken run stopped; to be called within ``process_group``, by all processes.

    Args:
        target: what the draft is for, on this process's device.
        out: the draft's folder to be; the same for all processes.
        settings: what draft.

    Raises:
        ModelRefused: no draft can be made of the target, or its answers or a kept training cannot be used.
        FileExistsError: the folder holds something, or the work beside it is of another run.
    """
    end = network_end(target)
    if settings.layers > len(end.layers):
        raise ModelRefused(f"{target.name} has {len(end.layers)} layers, not {settings.layers}")
    seconds: dict[str, float] = {}
    origin = {"target": target.description.model_fingerprint, **asdict(settings.corpus)}
    _by_first(lambda: workplace(out, origin))
    work = workplace(out, origin)
    with _timed(seconds, "answers"):
        _by_first(lambda: ask(Asker(target), settings.corpus, work))
        corpus = read_corpus(work)
    with _timed(seconds, "fit"):
        ends = target.description.eos_token_ids
        tokens = kept_tokens(corpus.answers, ends, settings.vocabulary, target.vocabulary_size).to(target.device)
        leaving = EarlyExit(end, settings.layers)
        exit_map = fit_exit_map(leaving, corpus.answers, corpus.held_out, tokens)
        network = leaving.draft(end.head.weight.detach().double() @ exit_map.weight, exit_map.projection)
    facts = [*_facts(settings, corpus, tokens), f"penalty {exit_map.penalty:g}, pull {exit_map.pull:g}"]
    if settings.training:
        with _timed(seconds, "training"):
            facts.append(_train(network, tokens, target, corpus, settings.training, work / TRAINING))
    with _timed(seconds, "trial"):
        _by_first(lambda: write_draft(work / DRAFT, network.to(end.head.weight.dtype), tokens, _folder(target)))
        trial = tried(target, load_model(str(work / DRAFT), str(target.device)), corpus)
    _by_first(lambda: _publish(work, out, target, [*facts, *trial.lines]))
    return Made(trial, facts, seconds)


def _by_first(step: Callable[[], object]) -> None:
    """Let the first process take a step; all go on when it is done."""
    if distributed.get_rank() == 0:
        step()
    distributed.barrier()


@contextmanager
def _timed(seconds: dict[str, float], name: str) -> Iterator[None]:
    start = monotonic()
    yield
    seconds[name] = monotonic() - start


def _train(
    network: Any,
    tokens: torch.Tensor,
    target: LanguageModel,
    corpus: Corpus,
    settings: DistillationSettings,
    folder: Path,
) -> str:
    """Distil, and say what came of it."""
    curve = distill(network, tokens, target, corpus.answers, corpus.held_out, settings, folder)
    return (
        f"trained on {curve[-1].tokens:,} answer tokens against the target's distributions: "
        f"α on held-out answers from {curve[0].acceptance:.3f} to {best(curve).acceptance:.3f}"
    )


def _facts(settings: DraftSettings, corpus: Corpus, tokens: torch.Tensor) -> list[str]:
    said = sum(len(answer.token_ids) - answer.prompt_length for answer in corpus.answers)
    return [
        f"the target's first {settings.layers} layers, the last one's down projection fitted anew, and an exit map to "
        "the target's last state, by ridge regression",
        f"fitted on {said:,} tokens of {len(corpus.answers)} answers that the target sampled at temperature 1, "
        f"seed {settings.corpus.seed}",
        f"a head of {len(tokens):,} tokens, which are {coverage(corpus.fresh, tokens):.1%} of the target's answers to "
        "fresh prompts",
    ]


def _folder(target: LanguageModel) -> Path:
    """Return the folder of the target's files."""
    return find_checkpoint(split_layers(target.name)[1]).folder


def _publish(work: Path, out: Path, target: LanguageModel, facts: Sequence[str]) -> None:
    """Add the model card and the curve, and give the draft its place."""
    for name in CURVE:
        if (work / TRAINING / name).exists():
            shutil.copyfile(work / TRAINING / name, work / DRAFT / name)
    (work / DRAFT / "README.md").write_text(model_card(target.description, written_licence(_folder(target)), facts))
    finish(work, out)
