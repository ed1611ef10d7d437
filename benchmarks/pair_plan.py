"""What the ``pair`` benchmark asks, and in which order."""

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.hugging_face import ASSISTED, Question
from benchmarks.prompts import PROMPTS
from benchmarks.ways import ADAPTIVE, PLAIN_AGAIN, speculation, way_name
from specdec.v1 import common_pb2, generation_pb2


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
        threads: of each model server, and of Hugging Face; they work in turns.
        seed: of the first lap.
        plain: prompts go without a chat template.
        ignore_eos: answers end at max_new_tokens alone.
        hugging_face: whether its ``generate`` answers, too.
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
    hugging_face: bool

    @property
    def gamma_by_way(self) -> dict[str, int | None]:
        """The ways of the services by name: plain, each gamma, what they choose themselves, and plain once more.

        The last comes as far from the first as others do, so that the pace of the machine drifts as much between them.
        """
        return {way_name(gamma): gamma for gamma in (*self.gammas, None)} | {PLAIN_AGAIN: 0}

    @property
    def cases(self) -> int:
        """Cases of one draft."""
        return len(self.kinds) * self.laps * len(self.temperatures)


@dataclass(frozen=True, slots=True)
class Case:
    """What is asked in every way: one prompt at one temperature with one seed."""

    kind: str
    lap: int
    temperature: float

    @property
    def text(self) -> str:
        """The prompt."""
        prompts = PROMPTS[self.kind]
        return prompts[self.lap % len(prompts)]


def cases(plan: Plan) -> list[Case]:
    """Return the cases in the order in which they are asked: every kind once a lap."""
    return [
        Case(kind, lap, temperature)
        for lap in range(plan.laps)
        for kind in plan.kinds
        for temperature in plan.temperatures
    ]


def rotated(ways: Sequence[str], turn: int) -> list[str]:
    """Return the ways beginning with another one each turn."""
    first = turn % len(ways)
    return [*ways[first:], *ways[:first]]


def request(plan: Plan, case: Case, way: str, max_new_tokens: int) -> generation_pb2.GenerateRequest:
    """Build the services' request of a case.

    The seed belongs to the prompt and the lap. Where the services choose gamma there is none, as users ask: what a
    seeded answer shows is kept from others.
    """
    sampling = common_pb2.SamplingParams(temperature=case.temperature, max_new_tokens=max_new_tokens)
    if way != ADAPTIVE:
        sampling.seed = plan.seed + case.lap
    if plan.ignore_eos:
        sampling.ignore_eos = True
    message = generation_pb2.ChatMessage(role="user", content=case.text)
    return generation_pb2.GenerateRequest(
        prompt=case.text if plan.plain else "",
        messages=[] if plan.plain else [message],
        sampling_params=sampling,
        speculation=speculation(plan.gamma_by_way[way], plan.verification),
    )


def question(plan: Plan, case: Case, way: str, max_new_tokens: int) -> Question:
    """Build Hugging Face's question of a case."""
    return Question(
        assisted=way == ASSISTED,
        text=case.text,
        plain=plan.plain,
        temperature=case.temperature,
        seed=plan.seed + case.lap,
        max_new_tokens=max_new_tokens,
        ignore_eos=plan.ignore_eos,
    )
