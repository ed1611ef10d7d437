"""Asks a synthetic pair of known pace for answers in several ways, one after the other, lap by lap."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.cost_model import Costs, alike, expected_tokens
from benchmarks.recording import Recording, Round
from benchmarks.speculation import acceptance_by_position, spread
from specdec.v1 import common_pb2, generation_pb2

VOCABULARY = 512
SEED = 1
PROMPT = "Once upon a time"

TimedRound = tuple[float, Round]
"""Seconds between its tokens and those of the round before, and what it said of itself."""


@dataclass(frozen=True, slots=True)
class Point:
    """A pair of synthetic models.

    Attributes:
        draft_ms: milliseconds of a draft pass.
        target_ms: milliseconds of a target pass, whatever is in it.
        alpha: chance that a draft token stands at temperature 1, in every context and with every verification.
    """

    draft_ms: float
    target_ms: float
    alpha: float

    @property
    def target(self) -> str:
        """The target's name."""
        return f"synthetic:vocabulary={VOCABULARY},seed={SEED},pass_ms={self.target_ms:g}"

    @property
    def draft(self) -> str:
        """The draft's name: its law shares the mass alpha with the target's."""
        return f"synthetic:vocabulary={VOCABULARY},seed={SEED},pass_ms={self.draft_ms:g},agreement={self.alpha:g}"

    def costs(self, round_trip_ms: float) -> Costs:
        """Return the costs in milliseconds."""
        return Costs(self.draft_ms, self.target_ms, self.target_ms, round_trip_ms)


@dataclass(frozen=True, slots=True)
class Way:
    """A way of decoding.

    Attributes:
        gamma: draft tokens a round.
        verification: token, block or coupled.
        round_trip_ms: added between the coordinator and each model server.
        ahead: by a draft that drafts on while the target verifies.
    """

    gamma: int
    verification: str
    round_trip_ms: float
    ahead: bool = False


def request(way: Way, alpha: float, rounds: int, seed: int) -> generation_pb2.GenerateRequest:
    """Ask for an answer of about so many rounds: with the same seed for every way."""
    tokens = round(rounds * expected_tokens(alike(alpha, way.gamma)))
    return generation_pb2.GenerateRequest(
        prompt=PROMPT,
        sampling_params=common_pb2.SamplingParams(
            temperature=1, seed=seed, max_new_tokens=max(2, tokens), ignore_eos=True
        ),
        speculation=generation_pb2.SpeculationParams(
            gamma=way.gamma, verification=f"VERIFICATION_{way.verification.upper()}"
        ),
    )


Ask = Callable[[generation_pb2.GenerateRequest], Recording]


def ask_laps(
    asks: Mapping[Way, Ask], alpha: float, rounds: int, laps: int, advance: Callable[[], None]
) -> dict[Way, list[Recording]]:
    """Ask every way once a lap, beginning with another one each lap, after a lap that does not count.

    Args:
        asks: asks the coordinator of each way.
        alpha: as the pair's.
        rounds: of an answer.
        laps: that count.
        advance: is called after each answer.

    Returns:
        One answer a lap of every way.
    """
    ways = list(asks)
    answers: dict[Way, list[Recording]] = {way: [] for way in ways}
    for way in ways:
        asks[way](request(way, alpha, 2, 0))
    for lap in range(laps):
        first = lap % len(ways)
        for way in [*ways[first:], *ways[:first]]:
            answers[way].append(asks[way](request(way, alpha, rounds, lap + 1)))
            advance()
    return answers


def figures(point: Point, way: Way, answers: Sequence[Recording], plain: Sequence[Recording]) -> dict[str, Any]:
    """Sum up one way.

    Args:
        point: the pair.
        way: of decoding.
        answers: its own, one a lap.
        plain: gamma 0's over the same links, one a lap.

    Returns:
        Figures by name; milliseconds and tokens are those of a round. ``efficiency`` is the time that passes and added
        round trips are set to take over the time that a round took: for gamma 0 that of plain decoding itself.
    """
    costs, acceptance = point.costs(way.round_trip_ms), alike(point.alpha, way.gamma)
    laps = [whole_rounds(answer, way.gamma) for answer in answers]
    plain_laps = [whole_rounds(answer, 0) for answer in plain]
    rounds = [one for lap in laps for one in lap]
    return {
        "gamma": way.gamma,
        "verification": way.verification,
        "round_trip_ms": way.round_trip_ms,
        "ahead": way.ahead,
        "rounds": len(rounds),
        "fallback_rounds": sum(one.fell_back for answer in answers for one in answer.rounds),
        "acceptance": acceptance_by_position(one for _, one in rounds),
        "tokens_a_round": statistics.fmean(one.accept_index + 1 for _, one in rounds),
        "expected_tokens_a_round": expected_tokens(acceptance),
        "round_ms": spread([1000 * seconds for seconds, _ in rounds]),
        "expected_round_ms": costs.round(way.gamma),
        "efficiency": spread([costs.round(way.gamma) / _mean_ms(lap) for lap in laps]),
        "tokens_a_second": spread([pace(lap) for lap in laps]),
        "speedup": spread([pace(lap) / pace(other) for lap, other in zip(laps, plain_laps, strict=True)]),
        "speedup_in_all": pace(rounds) / pace([one for lap in plain_laps for one in lap]),
        "expected_speedup": costs.speedup(acceptance),
        "milliseconds": breakdown(rounds),
    }


def gain(ahead: Sequence[Recording], sequential: Sequence[Recording], gamma: int) -> dict[str, float] | None:
    """Return how many times as fast answers were as others to the same requests, with its spread over them."""
    pairs = zip(ahead, sequential, strict=True)
    return spread([pace(whole_rounds(one, gamma)) / pace(whole_rounds(other, gamma)) for one, other in pairs])


def whole_rounds(answer: Recording, gamma: int) -> list[TimedRound]:
    """Return the rounds after the first that had all their draft tokens: the last ones of an answer have fewer."""
    pairs = zip(answer.rounds, answer.decoding, strict=False)
    return [(one.arrived - before.arrived, one) for before, one in pairs if one.gamma == gamma]


def pace(rounds: Sequence[TimedRound]) -> float:
    """Return the tokens a second of rounds, at least one."""
    return sum(one.accept_index + 1 for _, one in rounds) / sum(seconds for seconds, _ in rounds)


def _mean_ms(rounds: Sequence[TimedRound]) -> float:
    return 1000 * statistics.fmean(seconds for seconds, _ in rounds)


def breakdown(rounds: Sequence[TimedRound]) -> dict[str, float]:
    """Return where the time of a round goes, in mean milliseconds; together they are the mean time of a round.

    Args:
        rounds: at least one.
    """
    parts = {
        "draft_queue": [one.draft.queue for _, one in rounds],
        "draft_forward": [one.draft.forward for _, one in rounds],
        "draft_sampling": [one.draft.sampling for _, one in rounds],
        "propose_call": [one.propose_seconds - one.draft.queue - one.draft.model for _, one in rounds],
        "target_queue": [one.target.queue for _, one in rounds],
        "target_forward": [one.target.forward for _, one in rounds],
        "target_sampling": [one.target.sampling for _, one in rounds],
        "verify_call": [one.verify_seconds - one.target.queue - one.target.model for _, one in rounds],
        "between_calls": [took - one.propose_seconds - one.verify_seconds for took, one in rounds],
    }
    return {name: 1000 * statistics.fmean(seconds) for name, seconds in parts.items()}
