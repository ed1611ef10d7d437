"""Every proposal that a draft may make, with its probability; honest drafts and drafts that do otherwise."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum

from specdec.proposal import Proposal, SparseDistribution
from tests.statistical.cases import Context, Draft, Gamma


class Step(Enum):
    """What becomes of a draft token that was drawn."""

    GO_ON = 1
    STOP_WITH = 2  # it is the last one
    STOP_WITHOUT = 3  # it is dropped; a rule that looks at its distribution alone need not draw it


def to_the_end(q: SparseDistribution, token: int) -> Step:
    return Step.GO_ON


def in_time(draft_tokens: Context) -> float:
    return 1.0


@dataclass(frozen=True)
class Drafting:
    """How a draft proposes.

    Attributes:
        drawn: what each token is drawn from.
        reported: what is sent as that.
        gamma: draft tokens of a round at most.
        step: ends the proposal early.
        arrives: probability that the proposal is used, by its tokens; the round has none otherwise.
    """

    drawn: Draft
    reported: Draft
    gamma: Gamma
    step: Callable[[SparseDistribution, int], Step] = to_the_end
    arrives: Callable[[Context], float] = in_time

    def proposals(self, start: Context) -> Iterator[tuple[Proposal, float]]:
        """Yield what may be verified after `start`, with the probability of each."""
        for tokens, chance in self._drafts(start, self.gamma(start)):
            arrived = self.arrives(tokens)
            sent = tuple(self.reported(start + tokens[:index]) for index in range(len(tokens)))
            if arrived > 0:
                yield Proposal(tokens, sent), chance * arrived
            if arrived < 1:
                yield Proposal(), chance * (1 - arrived)

    def _drafts(self, start: Context, gamma: int, tokens: Context = ()) -> Iterator[tuple[Context, float]]:
        if len(tokens) == gamma:
            yield tokens, 1.0
            return
        q = self.drawn(start + tokens)
        for token, weight in zip(q.token_ids, q.probabilities, strict=True):
            chance = weight / sum(q.probabilities)
            match self.step(q, token):
                case Step.GO_ON:
                    for draft, rest in self._drafts(start, gamma, (*tokens, token)):
                        yield draft, chance * rest
                case Step.STOP_WITH:
                    yield (*tokens, token), chance
                case Step.STOP_WITHOUT:
                    yield tokens, chance
