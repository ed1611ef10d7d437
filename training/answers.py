"""What a draft is fitted on: the target's own answers, sampled in batches and kept in a file as they end.

An answer is a function of model, prompt, seed and its own index, up to rounding: not of the batch it was sampled in, so
that a broken run goes on where it stopped and ends with the same answers.
"""

import json
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from specdec.draws import Purpose, uniform
from specdec.model.language_model import KVCache, LanguageModel, Segment
from specdec.model.refusal import ModelRefused
from specdec.parameters import SamplingParams
from specdec.sampling import RowContext, distributions, inverse_cdf

WIDTH = 64  # answers sampled side by side
PLAIN = RowContext(SamplingParams(temperature=1.0), committed=(), prompt_length=0, drafted=(), end_token_ids=())


@dataclass(frozen=True, slots=True)
class Answer:
    """A prompt and what the target sampled after it, at temperature 1.

    Attributes:
        token_ids: prompt and answer, the token that ended it included.
        prompt_length: how many of them are the prompt, chat template applied; at least 1.

    Raises:
        ValueError: there is no prompt token or no token of an answer.
    """

    token_ids: tuple[int, ...]
    prompt_length: int

    def __post_init__(self) -> None:
        """Check that the answer has something to stand on and something to say."""
        if not 1 <= self.prompt_length < len(self.token_ids):
            raise ValueError(f"an answer of {len(self.token_ids)} tokens cannot have {self.prompt_length} of prompt")


def keep_answers(
    model: LanguageModel, prompts: Sequence[Sequence[int]], limit: int, seed: int, path: Path
) -> Iterator[int]:
    """Sample one answer a prompt into a file; yield the prompts' indices as their answers are there.

    Args:
        model: the target.
        prompts: of at least one token each.
        limit: tokens of one answer at most.
        seed: 0 to 2^32 - 1.
        path: a file of JSON lines; what a broken run left in it comes first, without a line that was cut short.

    Raises:
        ModelRefused: the model's logits are not finite.
    """
    known = read_answers(path) if path.exists() else {}
    yield from known
    missing = {index: prompt for index, prompt in enumerate(prompts) if index not in known}
    with path.open("w") as file:
        for index, answer in known.items():
            file.write(_line(index, answer))
        file.flush()
        for index, answer in sampled_answers(model, missing, limit, seed):
            file.write(_line(index, answer))
            file.flush()
            yield index


def read_answers(path: Path) -> dict[int, Answer]:
    """Return a file's answers by the index of their prompt, in rising order."""
    lines = [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
    lines.sort(key=lambda line: line["index"])
    return {line["index"]: Answer(tuple(line["token_ids"]), line["prompt_length"]) for line in lines}


def _line(index: int, answer: Answer) -> str:
    return json.dumps({"index": index, **asdict(answer)}) + "\n"


@dataclass(slots=True)
class _Running:
    """An answer that has not ended: tokens so far, of which the cache holds all but the unfed ones."""

    index: int
    tokens: list[int]
    prompt_length: int
    cache: KVCache

    @property
    def unfed(self) -> list[int]:
        return self.tokens[self.cache.length :]


def sampled_answers(
    model: LanguageModel, prompts: Mapping[int, Sequence[int]], limit: int, seed: int
) -> Iterator[tuple[int, Answer]]:
    """Let the model go on from every prompt, at temperature 1, up to its end or to limit tokens; yield as they end.

    Prompts that leave no room for limit tokens in the context lose their beginning.

    Args:
        model: the target.
        prompts: of at least one token each, by index.
        limit: tokens of one answer at most.
        seed: 0 to 2^32 - 1.

    Raises:
        ModelRefused: the model's logits are not finite.
    """
    limit = min(limit, model.context_length // 2)
    room = model.context_length - limit
    waiting = deque((index, list(prompt)[-room:]) for index, prompt in prompts.items())
    running: list[_Running] = []
    while waiting or running:
        while waiting and len(running) < WIDTH:
            index, tokens = waiting.popleft()
            running.append(_Running(index, tokens, len(tokens), model.new_cache()))
        _draw_next(model, running, seed)
        ended = [one for one in running if _ended(model, one, limit)]
        running = [one for one in running if not _ended(model, one, limit)]
        for one in ended:
            yield one.index, Answer(tuple(one.tokens), one.prompt_length)


def _draw_next(model: LanguageModel, running: Sequence[_Running], seed: int) -> None:
    """Add one token to every answer."""
    logits = torch.cat(model.forward([Segment(one.cache, one.unfed, 1) for one in running]))
    probabilities = distributions(logits, [PLAIN] * len(running)).double()
    uniforms = [uniform(seed << 32 | one.index, one.prompt_length, len(one.tokens), Purpose.NEXT) for one in running]
    if not probabilities.sum(dim=-1).isfinite().all():
        raise ModelRefused(f"{model.name}: its logits are not finite, so it cannot be sampled")
    drawn = inverse_cdf(probabilities, torch.tensor(uniforms, dtype=torch.float64, device=probabilities.device))
    for one, token in zip(running, drawn.tolist(), strict=True):
        one.tokens.append(token)


def _ended(model: LanguageModel, one: _Running, limit: int) -> bool:
    return one.tokens[-1] in model.description.eos_token_ids or len(one.tokens) - one.prompt_length >= limit
