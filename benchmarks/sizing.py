"""How many pods a rate of answers needs, and what each gamma gives. Pure; all computed, nothing measured.

An engine runs pass after pass and takes along what waits: a pod's capacity is the sessions of a pass by the time of a
pass, and a call that comes while one runs waits for half of it in the mean. Prompts are read beside the passes, each by
itself, and every answer that runs takes one of a pod's sessions; the room of caches in tokens is not counted.
Acceptance is one rate for all positions; where it falls with the position, long proposals are worth less than that.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.cost_model import Costs, alike, expected_tokens

BISECTIONS = 40


@dataclass(frozen=True, slots=True)
class Pair:
    """A pair on its nodes; times in milliseconds.

    Attributes:
        target_ms: a target pass over one token.
        token_ms: what each further token adds to it.
        draft_ms: a draft token.
        rtt_ms: the way of one call to a model server and back, and what the services do beside the passes.
        alpha: chance that a draft token stands, given that all before it do.
        target_batch: sessions that a target pass takes in about that time.
        draft_batch: sessions that a draft pass takes in about that time.
    """

    target_ms: float
    token_ms: float
    draft_ms: float
    rtt_ms: float
    alpha: float
    target_batch: int
    draft_batch: int

    def costs(self, gamma: int) -> Costs:
        """Return what a round of gamma draft tokens is made of."""
        return Costs(self.draft_ms, self.target_ms + gamma * self.token_ms, self.target_ms, self.rtt_ms)

    def speedup(self, gamma: int) -> float:
        """Return how many times the pace of plain decoding, with nobody else there."""
        return self.costs(gamma).speedup(alike(self.alpha, gamma))


@dataclass(frozen=True, slots=True)
class Need:
    """What is asked of a deployment.

    Attributes:
        rate: answers a second.
        tokens: of an answer.
        busy: share of a pod's capacity that is planned with; the rest is for peaks.
        sessions: that a pod has room for.
        prompt_ms: a target's work on one prompt, in milliseconds.
        draft_prompt_ms: a draft's.
    """

    rate: float
    tokens: int
    busy: float
    sessions: int = 64
    prompt_ms: float = 0.0
    draft_prompt_ms: float = 0.0

    def prompts(self, milliseconds: float) -> float:
        """Return how many pods are kept busy by prompts alone, each of which takes so long."""
        return self.rate * milliseconds / 1000


@dataclass(frozen=True, slots=True)
class Sizing:
    """What one gamma takes and gives.

    Attributes:
        gamma: draft tokens a round.
        tokens_a_round: committed.
        target_pods: at least 1.
        draft_pods: 0 for gamma 0.
        token_ms: time of a token at that rate, waiting included.
        answer_s: time of an answer after its prompt was read.
        speedup: pace of one answer alone, against plain decoding.
        answers_at_once: in the mean.
        most_tokens_a_second: that these target pods can commit.
    """

    gamma: int
    tokens_a_round: float
    target_pods: int
    draft_pods: int
    token_ms: float
    answer_s: float
    speedup: float
    answers_at_once: float
    most_tokens_a_second: float


def sizing(pair: Pair, need: Need, gamma: int) -> Sizing:
    """Return what gamma draft tokens a round take and give."""
    tokens, verify = expected_tokens(alike(pair.alpha, gamma)), _verify_ms(pair, gamma)
    rounds = _rounds(pair, need, gamma)
    target = rounds * verify / pair.target_batch + need.prompts(need.prompt_ms)
    draft = rounds * gamma * pair.draft_ms / pair.draft_batch + need.prompts(need.draft_prompt_ms)
    target_pods = max(1, math.ceil(target / need.busy))
    draft_pods = max(1, math.ceil(draft / need.busy)) if gamma else 0
    least = math.ceil(need.rate * _answer_s(pair, need, gamma, target_pods, draft_pods) / need.sessions)
    target_pods, draft_pods = max(target_pods, least), max(draft_pods, least) if gamma else 0
    answer_s = _answer_s(pair, need, gamma, target_pods, draft_pods)  # with more pods it can only be shorter
    left = target_pods - need.prompts(need.prompt_ms)
    return Sizing(
        gamma=gamma,
        tokens_a_round=tokens,
        target_pods=target_pods,
        draft_pods=draft_pods,
        token_ms=answer_s * 1000 / need.tokens,
        answer_s=answer_s,
        speedup=pair.speedup(gamma),
        answers_at_once=need.rate * answer_s,
        most_tokens_a_second=left * pair.target_batch * tokens / verify * 1000,
    )


def _verify_ms(pair: Pair, gamma: int) -> float:
    costs = pair.costs(gamma)
    return costs.verify if gamma else costs.plain


def _rounds(pair: Pair, need: Need, gamma: int) -> float:
    """Return the rounds of a millisecond."""
    return need.rate * need.tokens / expected_tokens(alike(pair.alpha, gamma)) / 1000


def _answer_s(pair: Pair, need: Need, gamma: int, target_pods: int, draft_pods: int) -> float:
    """Return the seconds of an answer with so many pods, waiting for passes of others included."""
    verify, rounds = _verify_ms(pair, gamma), _rounds(pair, need, gamma)
    waiting = min(1.0, rounds * verify / target_pods) * verify / 2
    if gamma:
        waiting += min(1.0, rounds * gamma * pair.draft_ms / draft_pods) * pair.draft_ms / 2
    round_ms = pair.costs(gamma).round(gamma) + waiting
    return need.tokens * round_ms / expected_tokens(alike(pair.alpha, gamma)) / 1000


def best(sizings: list[Sizing]) -> Sizing:
    """Return the one with the shortest time of a token; of equals, the one with fewer draft tokens."""
    return min(sizings, key=lambda each: (each.token_ms, each.gamma))


def least_alpha(gains: Callable[[float], bool]) -> float | None:
    """Return the acceptance from which on speculation gains, None where it never does.

    Args:
        gains: whether some gamma gains at an acceptance; of two, at the higher if at the lower.
    """
    if not gains(1.0):
        return None
    low, high = 0.0, 1.0
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        low, high = (low, middle) if gains(middle) else (middle, high)
    return high


def most_draft_ms(pair: Pair, max_gamma: int) -> float | None:
    """Return how long a draft token may take for some gamma up to max_gamma to gain, None where none may."""

    def most(gamma: int) -> float:
        costs, tokens = pair.costs(gamma), expected_tokens(alike(pair.alpha, gamma))
        return (tokens * costs.round(0) - costs.verify - 2 * costs.round_trip) / gamma

    longest = max(most(gamma) for gamma in range(1, max_gamma + 1))
    return longest if longest > 0 else None
