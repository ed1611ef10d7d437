"""Asks the target: prompts that it invents itself and built-in ones, in its own chat template, and its answers.

Every second prompt is invented: the target is let go on where its template opens a user's turn. Such prompts are as
diverse as what the target was trained on, and no data file is needed.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import track

from training.answers import Answer, keep_answers, read_answers
from training.asker import Asker
from training.prompts import HELD_OUT, built_in_prompts

MESSAGE_TOKENS = 48  # of an invented message at most
HELD_OUT_SHARE = 0.1
MAX_SEED = 2**30 - 1
MESSAGES, ANSWERS, FRESH = "messages.jsonl", "answers.jsonl", "fresh.jsonl"


@dataclass(frozen=True, slots=True)
class CorpusSettings:
    """What is asked.

    Attributes:
        answers: how many, at least 10.
        answer_tokens: of one answer at most.
        seed: 0 to 2^30 - 1.

    Raises:
        ValueError: a number is out of its range.
    """

    answers: int = 240
    answer_tokens: int = 96
    seed: int = 0

    def __post_init__(self) -> None:
        """Check the ranges."""
        if self.answers < 10 or self.answer_tokens < 1 or not 0 <= self.seed <= MAX_SEED:
            raise ValueError(f"answers must be at least 10, answer_tokens 1, and seed 0 to {MAX_SEED}")


@dataclass(frozen=True, slots=True)
class Corpus:
    """Answers of the target.

    Attributes:
        answers: to fit on.
        held_out: like them, to choose and to measure with.
        fresh: to prompts of ``training.prompts.HELD_OUT``, to measure with.
    """

    answers: Sequence[Answer]
    held_out: Sequence[Answer]
    fresh: Sequence[Answer]


def ask(asker: Asker, settings: CorpusSettings, folder: Path) -> None:
    """Ask the target, or go on asking where a broken run stopped.

    Args:
        asker: the target.
        settings: what to ask.
        folder: keeps the answers as they come.

    Raises:
        ModelRefused: the target cannot be sampled.
    """
    texts = built_in_prompts(settings.answers, settings.seed)
    if opening := asker.opening():
        openings = [opening] * (settings.answers // 2)
        invented = _kept(asker, openings, MESSAGE_TOKENS, 3 * settings.seed, folder / MESSAGES)
        texts[1::2] = [asker.message(one) or text for one, text in zip(invented, texts[1::2], strict=True)]
    fresh = [text for texts in HELD_OUT.values() for text in texts]
    for seed, name, asked in ((1, ANSWERS, texts), (2, FRESH, fresh)):
        prompts = [asker.prompt(text) for text in asked]
        _kept(asker, prompts, settings.answer_tokens, 3 * settings.seed + seed, folder / name)


def read_corpus(folder: Path) -> Corpus:
    """Return what ``ask`` has kept in a folder."""
    answers = list(read_answers(folder / ANSWERS).values())
    fitted = len(answers) - round(len(answers) * HELD_OUT_SHARE)
    return Corpus(answers[:fitted], answers[fitted:], list(read_answers(folder / FRESH).values()))


def _kept(asker: Asker, prompts: Sequence[Sequence[int]], limit: int, seed: int, path: Path) -> list[Answer]:
    """Return the target's answers in the order of the prompts, those in the file included; show how far it is."""
    console = Console(stderr=True)
    indices = keep_answers(asker.model, prompts, limit, seed, path)
    deque(track(indices, path.stem, len(prompts), console=console, disable=not console.is_terminal), maxlen=0)
    return list(read_answers(path).values())
