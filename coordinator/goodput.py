"""What rounds have shown, and how many tokens a second a round of gamma draft tokens may be expected to bring. Pure.

Source: goodput as in Liu et al. 2024 (arXiv 2406.14066, section 4), with the acceptance of each position in place of
one rate for all: one rate promises too much of long proposals.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from coordinator.durations import FORGET

PRIOR_ROUNDS = 4.0  # that the fleet's experience counts for beside a session's own


@dataclass(slots=True)
class Position:
    """Decayed counts of one place in a proposal, over the rounds in which everything before it stood.

    Attributes:
        asked: a draft token was asked for.
        proposed: there was one.
        stood: the target kept it.
    """

    asked: float = 0.0
    proposed: float = 0.0
    stood: float = 0.0

    def add(self, *, proposed: bool, stood: bool) -> None:
        """Count a round."""
        self.asked = self.asked * FORGET + 1
        self.proposed = self.proposed * FORGET + proposed
        self.stood = self.stood * FORGET + stood


@dataclass(slots=True)
class Acceptance:
    """How far proposals stand.

    Attributes:
        positions: counts from the first draft token on.
    """

    positions: list[Position] = field(default_factory=list)

    def observe(self, asked: int, proposed: int, accept_index: int) -> None:
        """Count a round: draft tokens asked for, proposed, and kept."""
        self.positions.extend(Position() for _ in range(asked - len(self.positions)))
        for index in range(min(asked, accept_index + 1)):
            self.positions[index].add(proposed=index < proposed, stood=index < accept_index)


@dataclass(frozen=True, slots=True)
class Prospect:
    """What asking for gamma draft tokens may be expected to bring.

    Attributes:
        proposed: draft tokens that come.
        stood: draft tokens that the target keeps.
    """

    proposed: float
    stood: float


def prospects(own: Acceptance, fleet: Acceptance, max_gamma: int) -> list[Prospect]:
    """Return what 0 to max_gamma draft tokens may be expected to bring, entry gamma for gamma.

    What is known of a position is weighed against one round in which it is like the one before it; the first is weighed
    against a coin. So one round decides nothing, and a position nobody has asked for is taken to be like its neighbour.
    """
    expected = [Prospect(0.0, 0.0)]
    going = standing = 1.0
    before = Position(asked=1.0, proposed=1.0, stood=0.5)
    for index in range(max_gamma):
        prior = _joined(_at(fleet, index), before, 1.0)
        here = _joined(_at(own, index), prior, PRIOR_ROUNDS)
        going *= here.proposed / here.asked
        standing *= here.stood / here.asked
        expected.append(Prospect(expected[-1].proposed + going, expected[-1].stood + standing))
        before = here
    return expected


def _at(acceptance: Acceptance, index: int) -> Position:
    return acceptance.positions[index] if index < len(acceptance.positions) else Position()


def _joined(known: Position, prior: Position, rounds: float) -> Position:
    share = min(1.0, rounds / prior.asked)
    return Position(
        known.asked + share * prior.asked, known.proposed + share * prior.proposed, known.stood + share * prior.stood
    )


def least_survival(
    expected: Sequence[Prospect], seconds: Callable[[float], float], gamma: int, rate: float
) -> list[float]:
    """Return how likely the first, and every further draft token must be to stand to be worth the time it takes.

    A first one leads to others: it is worth what all of them bring, as far as proposals have gone until now. A further
    one takes the mean of what those up to gamma take: what lies beyond is not asked for.

    Args:
        expected: entry gamma for gamma.
        seconds: of a round with so many draft tokens for which the draft is asked, a mean number.
        gamma: draft tokens asked for, at least 1.
        rate: tokens a second that time is worth.
    """
    first, last = expected[1], expected[gamma]
    lead = last.stood / first.stood if first.stood > 0 else 1.0
    tokens = last.proposed / first.proposed if first.proposed > 0 else 1.0
    begin = rate * (seconds(tokens) - seconds(0.0)) / lead
    most = max(tokens, 2.0)
    go_on = rate * (seconds(most) - seconds(1.0)) / (most - 1.0)
    # A likelihood, whatever the durations say.
    return [min(max(0.0, bound), 1.0) for bound in (begin, go_on)]


def goodput(expected: Sequence[Prospect], plain: float, seconds: Callable[[float], float]) -> list[float]:
    """Return the expected tokens a second of rounds of 0, 1, … draft tokens.

    Args:
        expected: entry gamma for gamma.
        plain: seconds of a round without the draft.
        seconds: see ``least_survival``.
    """
    return [1.0 / plain] + [(1 + prospect.stood) / seconds(prospect.proposed) for prospect in expected[1:]]
