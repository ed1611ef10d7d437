"""Runs one draft beside its target in the real services and asks everything that the ``pair`` benchmark compares.

Each prompt is asked with every gamma, one after the other, gamma 0 among them, so that a machine whose pace drifts
meets all of them alike; which one comes first changes from prompt to prompt.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.prompts import PROMPTS
from benchmarks.recording import CALL_SECONDS, Recording, record
from benchmarks.services import running
from benchmarks.speculation import first_difference
from specdec.v1 import common_pb2, generation_pb2

WARM_UP_TOKENS = 16
ALTERNATIVES = 20  # tokens whose log-probability is looked at where two answers part


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured.

    Attributes:
        target: the target's model.
        drafts: the drafts' models.
        kinds: of prompts.
        laps: prompts asked of each kind; more than there are ask them again with other seeds.
        temperatures: 0 is greedy.
        gammas: draft tokens a round, ascending from 0.
        max_new_tokens: of an answer.
        verification: token, block or coupled.
        threads: of each model server; they work in turns.
        seed: of the first lap.
        plain: prompts go without a chat template.
        ignore_eos: answers end at max_new_tokens alone.
    """

    target: str
    drafts: tuple[str, ...]
    kinds: tuple[str, ...]
    laps: int
    temperatures: tuple[float, ...]
    gammas: tuple[int, ...]
    max_new_tokens: int
    verification: str
    threads: int
    seed: int
    plain: bool
    ignore_eos: bool

    @property
    def answers(self) -> int:
        """Answers to measure of one draft."""
        return len(self.kinds) * self.laps * len(self.temperatures) * len(self.gammas)


@dataclass(frozen=True, slots=True)
class Case:
    """What is asked with every gamma: one prompt at one temperature with one seed."""

    kind: str
    lap: int
    temperature: float


@dataclass(frozen=True, slots=True)
class DraftRun:
    """What came of one draft.

    Attributes:
        models: what target and draft say of themselves.
        redis: version of the server.
        answers: case: gamma: the answer.
        differences: greedy answers that are not those of gamma 0, each with where they part and by how much.
    """

    models: Any
    redis: str
    answers: dict[Case, dict[int, Recording]]
    differences: list[dict[str, Any]]


def run_draft(plan: Plan, draft: str, tell_seconds: Callable[[float], None], advance: Callable[[], None]) -> DraftRun:
    """Start the system with a draft, warm up, and ask everything.

    Args:
        plan: what to ask.
        draft: the draft's model.
        tell_seconds: hears about how long the answers will take, once that is known.
        advance: is called after each answer.

    Raises:
        StartFailed: the system did not start.
        grpc.RpcError: a call failed.
    """
    with running(plan.target, draft, {"OMP_NUM_THREADS": str(plan.threads)}) as services:
        stub = services.stub
        tell_seconds(_warm_up(stub, plan))
        answers = _ask_all(stub, plan, advance)
        return DraftRun(services.models, services.redis, answers, list(_differences(stub, answers)))


def cases(plan: Plan) -> list[Case]:
    """Return the cases in the order in which they are asked: every kind once a lap."""
    return [
        Case(kind, lap, temperature)
        for lap in range(plan.laps)
        for kind in plan.kinds
        for temperature in plan.temperatures
    ]


def rotated(gammas: Sequence[int], turn: int) -> list[int]:
    """Return the gammas beginning with another one each turn."""
    first = turn % len(gammas)
    return [*gammas[first:], *gammas[:first]]


def request(plan: Plan, case: Case, gamma: int) -> generation_pb2.GenerateRequest:
    """Build the request of a case; the seed belongs to the prompt and the lap."""
    prompts = PROMPTS[case.kind]
    text = prompts[case.lap % len(prompts)]
    sampling = common_pb2.SamplingParams(
        temperature=case.temperature, seed=plan.seed + case.lap, max_new_tokens=plan.max_new_tokens
    )
    if plan.ignore_eos:
        sampling.ignore_eos = True
    message = generation_pb2.ChatMessage(role="user", content=text)
    return generation_pb2.GenerateRequest(
        prompt=text if plan.plain else "",
        messages=[] if plan.plain else [message],
        sampling_params=sampling,
        speculation=generation_pb2.SpeculationParams(
            gamma=gamma, verification=f"VERIFICATION_{plan.verification.upper()}"
        ),
    )


def _warm_up(stub: Any, plan: Plan) -> float:
    """Ask a short answer with every gamma; return the seconds that all answers of the draft take at their pace."""
    seconds = 0.0
    for gamma in plan.gammas:
        short = request(plan, Case(plan.kinds[0], 0, plan.temperatures[0]), gamma)
        short.sampling_params.max_new_tokens = WARM_UP_TOKENS
        answer = record(stub, short)
        seconds += answer.seconds / len(answer.token_ids) * plan.max_new_tokens
    return seconds * plan.answers / len(plan.gammas)


def _ask_all(stub: Any, plan: Plan, advance: Callable[[], None]) -> dict[Case, dict[int, Recording]]:
    answers: dict[Case, dict[int, Recording]] = {}
    for turn, case in enumerate(cases(plan)):
        answers[case] = {}
        for gamma in rotated(plan.gammas, turn):
            answers[case][gamma] = record(stub, request(plan, case, gamma))
            advance()
    return answers


def _differences(stub: Any, answers: dict[Case, dict[int, Recording]]) -> Iterator[dict[str, Any]]:
    """Find the greedy answers that speculation changed."""
    for case, by_gamma in answers.items():
        plain = by_gamma[0]
        for gamma, answer in sorted(by_gamma.items()):
            index = first_difference(plain.token_ids, answer.token_ids)
            if case.temperature == 0 and index is not None:
                place = {"kind": case.kind, "lap": case.lap, "gamma": gamma, "index": index}
                yield place | {"gap": _gap(stub, plain, answer, index)}


def _gap(stub: Any, plain: Recording, answer: Recording, index: int) -> float | None:
    """Return how far the target holds apart the two tokens at which greedy answers part.

    Returns:
        The difference of their log-probabilities (nats, before any penalty), near 0 for a near-tie; None when one of
        the answers has ended there or a token is not among the target's likeliest.
    """
    if index >= min(len(plain.token_ids), len(answer.token_ids)):
        return None
    asked = generation_pb2.GenerateRequest(
        token_ids=[*plain.prompt_ids, *plain.token_ids[:index]],
        sampling_params=common_pb2.SamplingParams(temperature=0, max_new_tokens=1, logprobs=ALTERNATIVES),
        speculation=generation_pb2.SpeculationParams(gamma=0),
    )
    events = list(stub.Generate(asked, timeout=CALL_SECONDS))
    found = {top.token_id: top.logprob for event in events for one in event.logprobs for top in one.top}
    here, there = plain.token_ids[index], answer.token_ids[index]
    return abs(found[here] - found[there]) if here in found and there in found else None
