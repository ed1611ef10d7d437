"""Which answers a step learns from: the same ones on any number of devices, and after a resume."""

from collections.abc import Iterator, Sequence
from itertools import count

import torch

from training.answers import Answer


def answer_tokens(answers: Sequence[Answer]) -> int:
    """Return how many tokens the answers have without their prompts."""
    return sum(len(answer.token_ids) - answer.prompt_length for answer in answers)


def shuffled(answers: Sequence[Answer], seed: int, start: int) -> Iterator[Answer]:
    """Yield answers for ever, epoch after epoch, each in an order of its own.

    Args:
        answers: at least one.
        seed: the orders are a function of it and of the epoch.
        start: how many to skip.
    """
    first, skipped = divmod(start, len(answers))
    for epoch in count(first):
        order = torch.randperm(len(answers), generator=torch.Generator().manual_seed(seed + epoch)).tolist()
        yield from (answers[place] for place in order[skipped:])
        skipped = 0


def step_batch(order: Iterator[Answer], tokens: int, devices: int) -> list[Answer]:
    """Take as many answers as it needs for so many answer tokens, and one for each device at least."""
    batch: list[Answer] = []
    while len(batch) < devices or answer_tokens(batch) < tokens:
        batch.append(next(order))
    return batch


def share(batch: Sequence[Answer], rank: int, devices: int) -> list[Answer]:
    """Return one device's part of a batch, the longest answer first; never empty where the batch has enough."""
    return sorted(batch, key=lambda answer: len(answer.token_ids), reverse=True)[rank::devices]


def micro_batches(answers: Sequence[Answer], padded_tokens: int) -> list[list[Answer]]:
    """Cut answers, longest first, into batches of at most so many tokens, padding included, or of one answer."""
    batches: list[list[Answer]] = []
    for answer in answers:
        if batches and len(batches[-1][0].token_ids) * (len(batches[-1]) + 1) <= padded_tokens:
            batches[-1].append(answer)
        else:
            batches.append([answer])
    return batches
