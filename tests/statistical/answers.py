"""Answers of running services, and how far their tokens are from the target's law.

Every committed token counts, with the target's exact law given what was committed before it: how often the tokens of a
cell came is compared with the sum of their probabilities. Cells are made twice: of the token before and the token (as
the model sees it), and of the token and how often it had come already (as penalties see it).
"""

import asyncio
import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch

from specdec.model.language_model import LanguageModel, Segment
from specdec.model.loading import load_model
from specdec.parameters import SamplingParams
from specdec.sampling import RowContext, distributions
from specdec.v1 import common_pb2, generation_pb2
from specdec.v1.generation_pb2_grpc import GenerationServiceStub
from specdec.verification import normalised
from tests.statistical.cases import OPTIONS, TEMPERATURES, Context
from tests.statistical.chi_square import z_score
from tests.statistical.enumeration import until_end

TARGET, DRAFT = "synthetic:vocabulary=8,seed=1,order=2", "synthetic:vocabulary=8,seed=185,order=2"
PROMPT, LENGTH, AT_ONCE = (3,), 8, 32
WAYS = {
    "token": common_pb2.VERIFICATION_TOKEN,
    "block": common_pb2.VERIFICATION_BLOCK,
    "coupled": common_pb2.VERIFICATION_COUPLED,
}
# By seed: with "mixed", rounds of every length share the batches.
GAMMAS = {"0": (0,), "1": (1,), "4": (4,), "mixed": (4, 1, 0, 3, 2)}


@dataclass(frozen=True)
class Cell:
    """What is asked for: names of a temperature, an option, a way and a gamma; and after what."""

    temperature: str
    option: str
    way: str
    gamma: str
    prompt: Context = PROMPT

    @property
    def params(self) -> dict:
        return {"temperature": TEMPERATURES[self.temperature], **OPTIONS[self.option]}

    def request(self, seed: int, length: int = LENGTH) -> generation_pb2.GenerateRequest:
        gammas = GAMMAS[self.gamma]
        params = common_pb2.SamplingParams(**self.params, seed=seed, max_new_tokens=length, ignore_eos=True)
        speculation = generation_pb2.SpeculationParams(gamma=gammas[seed % len(gammas)], verification=WAYS[self.way])
        return generation_pb2.GenerateRequest(token_ids=self.prompt, sampling_params=params, speculation=speculation)


@dataclass
class Answers:
    """What came of many requests.

    Attributes:
        tokens: how often each answer came.
        usage: draft tokens, accepted ones and rounds of fallback, in all.
    """

    tokens: Counter = field(default_factory=Counter)
    usage: Counter = field(default_factory=Counter)


async def answers_of(stub: GenerationServiceStub, requests: Iterable[generation_pb2.GenerateRequest]) -> Answers:
    """Ask for all, some at once."""
    answers, slots = Answers(), asyncio.Semaphore(AT_ONCE)

    async def ask(request: generation_pb2.GenerateRequest) -> None:
        async with slots:
            events = [event async for event in stub.Generate(request, timeout=120)]
        answers.tokens[tuple(token for event in events for token in event.token_ids)] += 1
        answers.usage["draft_tokens"] += events[-1].usage.spec_draft_tokens
        answers.usage["accepted"] += events[-1].usage.spec_accepted_tokens
        answers.usage["fallbacks"] += sum(event.round.fallback != 0 for event in events)

    await asyncio.gather(*map(ask, requests))
    return answers


def z_of(tokens: Counter, cell: Cell, model: str | LanguageModel = TARGET) -> float:
    """Return how far answers are from a model's law; infinite when one cannot come. A name means float64."""
    rows = Rows(cell, load_model(model, dtype="float64") if isinstance(model, str) else model)
    observed, expected = (Counter(), Counter()), (Counter(), Counter())
    for answer, count in tokens.items():
        if len(until_end(answer, rows.params.stop_token_ids)) != len(answer) or not ended(answer, rows.params):
            return math.inf
        for index, token in enumerate(answer):
            for other, mass in enumerate(rows(answer[:index])):
                for which, pair in enumerate(cells((*cell.prompt, *answer[:index]), other)):
                    expected[which][pair] += count * mass
                    observed[which][pair] += count * (other == token)
    return max(
        z_score(+seen, {pair: mass / seen.total() for pair, mass in law.items()})
        for seen, law in zip(observed, expected, strict=True)
    )


def cells(context: Context, token: int) -> tuple[Context, Context]:
    """Return the two cells of a token that follows a context."""
    return (context[-1], token), (token, min(context.count(token), 2))


def ended(answer: Context, params: SamplingParams) -> bool:
    return len(answer) == LENGTH or answer[-1] in params.stop_token_ids


class Rows:
    """The exact laws of a model under a cell's parameters."""

    def __init__(self, cell: Cell, model: LanguageModel) -> None:
        self.params = SamplingParams(**cell.params)
        self._prompt = cell.prompt
        self._model = model
        self._known: dict[Context, list[float]] = {}

    def __call__(self, answer: Context) -> list[float]:
        """Return the [vocabulary] probabilities after a part of an answer."""
        if answer not in self._known:
            context = (*self._prompt, *answer)
            with torch.inference_mode():
                (logits,) = self._model.forward([Segment(self._model.new_cache(), context, 1)])
            row = RowContext(self.params, context, len(self._prompt), (), self._model.description.eos_token_ids)
            self._known[answer] = normalised(distributions(logits, [row]))[0].tolist()
        return self._known[answer]
