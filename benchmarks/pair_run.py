"""Runs one draft beside its target in the real services and asks everything that the ``pair`` benchmark compares.

Each prompt is asked in every way, one after the other, plain decoding among them, so that a machine whose pace drifts
meets all of them alike; which one comes first changes from prompt to prompt.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

from benchmarks.hugging_face import ASSISTED, GENERATE, HuggingFace, can_assist
from benchmarks.pair_plan import Case, Plan, cases, question, request, rotated
from benchmarks.recording import CALL_SECONDS, Recording, record
from benchmarks.services import running
from benchmarks.speculation import first_difference
from benchmarks.ways import PLAIN
from deploy.process import StartFailed
from specdec.v1 import common_pb2, generation_pb2

WARM_UP_TOKENS = 16
ALTERNATIVES = 20  # tokens whose log-probability is looked at where two answers part

Ask = Callable[[Case, int], Recording]
"""Asks a case in one way, for so many tokens at most."""

Answers = dict[Case, dict[str, Recording]]
"""Case: way: the answer."""


@dataclass(frozen=True, slots=True)
class DraftRun:
    """What came of one draft.

    Attributes:
        models: what target and draft say of themselves.
        redis: version of the server.
        ways: by name; plain decoding is the first.
        answers: to every case in every way.
        differences: greedy answers that are not plain decoding's, each with where they part and by how much.
    """

    models: Any
    redis: str
    ways: list[str]
    answers: Answers
    differences: list[dict[str, Any]]


def ways_of(plan: Plan, draft: str) -> list[str]:
    """Return the ways of decoding with a draft: those of the services, then those of Hugging Face."""
    own = list(plan.gamma_by_way)
    if not plan.hugging_face:
        return own
    return [*own, GENERATE, ASSISTED] if can_assist(draft) else [*own, GENERATE]


def run_draft(plan: Plan, draft: str, tell_seconds: Callable[[float], None], advance: Callable[[], None]) -> DraftRun:
    """Start the system with a draft, warm up, and ask everything.

    Args:
        plan: what to ask.
        draft: the draft's model.
        tell_seconds: hears about how long the answers will take, once that is known.
        advance: is called after each answer.

    Raises:
        StartFailed: the system or Hugging Face did not start, or they would answer different prompts.
        grpc.RpcError: a call failed.
    """
    with ExitStack() as stack:
        services = stack.enter_context(running(plan.target, draft, {"OMP_NUM_THREADS": str(plan.threads)}))
        stub, ways = services.stub, ways_of(plan, draft)
        asks: dict[str, Ask] = {way: partial(_ask_services, stub, plan, way) for way in plan.gamma_by_way}
        if plan.hugging_face:
            library = stack.enter_context(HuggingFace(plan.target, draft, plan.threads))
            asks |= {way: partial(_ask_library, library, plan, way) for way in ways if way not in asks}
        tell_seconds(warm_up(plan, asks))
        answers = ask_all(plan, asks, advance)
        differences = list(_differences(stub, answers))
        return DraftRun(services.models, services.redis, ways, answers, differences)


def warm_up(plan: Plan, asks: Mapping[str, Ask]) -> float:
    """Ask a short answer in every way; return the seconds that all answers take at their pace.

    Raises:
        StartFailed: a way answers another prompt.
    """
    case = Case(plan.kinds[0], 0, plan.temperatures[0])
    answers = {way: ask(case, WARM_UP_TOKENS) for way, ask in asks.items()}
    prompt = answers[PLAIN].prompt_ids
    for way, answer in answers.items():
        if answer.prompt_ids != prompt:
            raise StartFailed(f"{way} reads the prompt as {answer.prompt_ids}, plain decoding as {prompt}")
    return sum(one.seconds / len(one.token_ids) for one in answers.values()) * plan.max_new_tokens * plan.cases


def ask_all(plan: Plan, asks: Mapping[str, Ask], advance: Callable[[], None]) -> Answers:
    """Ask every case in every way."""
    answers: Answers = {}
    for turn, case in enumerate(cases(plan)):
        answers[case] = {}
        for way in rotated(list(asks), turn):
            answers[case][way] = asks[way](case, plan.max_new_tokens)
            advance()
    return answers


def _ask_services(stub: Any, plan: Plan, way: str, case: Case, max_new_tokens: int) -> Recording:
    return record(stub, request(plan, case, way, max_new_tokens))


def _ask_library(library: HuggingFace, plan: Plan, way: str, case: Case, max_new_tokens: int) -> Recording:
    return library.ask(question(plan, case, way, max_new_tokens))


def _differences(stub: Any, answers: Answers) -> Iterator[dict[str, Any]]:
    """Find the greedy answers that are not plain decoding's."""
    for case, by_way in answers.items():
        plain = by_way[PLAIN]
        for way, answer in sorted(by_way.items()):
            index = first_difference(plain.token_ids, answer.token_ids)
            if case.temperature == 0 and index is not None:
                place = {"kind": case.kind, "lap": case.lap, "way": way, "index": index}
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
