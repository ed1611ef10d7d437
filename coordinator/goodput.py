"""What rounds have shown, and how many tokens a second a round of gamma draft tokens may be expected to bring. Pure.

Source: goodput as in Liu et al. 2024 (arXiv 2406.14066, section 4), with the acceptance of each position in place of
one rate for all: one rate promises too much of long proposals.
"""

from bisect import bisect
from collections.abc import Sequence
from dataclasses import dataclass, field

FORGET = 0.97  # what an observation still weighs when the next of its kind has come: about 30 of them count
PRIOR_ROUNDS = 2.0  # that the fleet's experience counts for beside a session's own
OUTLIER = 3.0  # times the usual duration; what takes longer has waited for something else


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

    A position nobody has asked for is taken to be like the one before it; the first, when nothing is known, for a coin.
    """
    expected = [Prospect(0.0, 0.0)]
    going = standing = 1.0
    known = Position(asked=1.0, proposed=1.0, stood=0.5)
    for index in range(max_gamma):
        here = _with_prior(_at(own, index), _at(fleet, index))
        known = here if here.asked > 0 else known
        going *= known.proposed / known.asked
        standing *= known.stood / known.asked
        expected.append(Prospect(expected[-1].proposed + going, expected[-1].stood + standing))
    return expected


def _at(acceptance: Acceptance, index: int) -> Position:
    return acceptance.positions[index] if index < len(acceptance.positions) else Position()


def _with_prior(own: Position, fleet: Position) -> Position:
    share = min(1.0, PRIOR_ROUNDS / fleet.asked) if fleet.asked > 0 else 0.0
    return Position(
        own.asked + share * fleet.asked, own.proposed + share * fleet.proposed, own.stood + share * fleet.stood
    )


@dataclass(slots=True)
class Durations:
    """Mean seconds of a call by the number of draft tokens in it.

    Attributes:
        means: draft tokens to seconds.
    """

    means: dict[int, float] = field(default_factory=dict)
    _counts: dict[int, int] = field(default_factory=dict)

    def observe(self, tokens: int, seconds: float) -> None:
        """Take a call in: the plain mean of the first ones, then a decayed one that outliers hardly move."""
        count = self._counts[tokens] = self._counts.get(tokens, 0) + 1
        mean = self.means.get(tokens, seconds)
        weight = max(1 / count, 1 - FORGET)
        self.means[tokens] = mean + weight * (min(seconds, OUTLIER * mean) - mean)

    def expected(self, tokens: float) -> float:
        """Return the seconds of a call of so many tokens, a mean number: a line between and beyond what is known.

        More tokens never take less: what says so is noise.
        """
        known = sorted(self.means)
        if len(known) == 1:
            return self.means[known[0]]
        right = min(max(bisect(known, tokens), 1), len(known) - 1)
        low, high = known[right - 1], known[right]
        slope = max(0.0, (self.means[high] - self.means[low]) / (high - low))
        return self.means[low] + slope * (tokens - low)


def least_survival(
    expected: Sequence[Prospect], propose: Durations, verify: Durations, gamma: int, rate: float
) -> list[float]:
    """Return how likely the first, and every further draft token must be to stand to be worth the time it takes.

    A first one leads to others: it is worth what all of them bring, as far as proposals have gone until now.

    Args:
        expected: entry gamma for gamma.
        propose: durations of Propose calls.
        verify: durations of Verify calls.
        gamma: draft tokens asked for, at least 1.
        rate: tokens a second that time is worth.
    """

    def seconds(tokens: float) -> float:
        return propose.expected(tokens) + verify.expected(tokens)

    first, last = expected[1], expected[gamma]
    lead = last.stood / first.stood if first.stood > 0 else 1.0
    tokens = last.proposed / first.proposed if first.proposed > 0 else 1.0
    begin = rate * (seconds(tokens) - seconds(0.0)) / lead
    go_on = rate * (seconds(tokens + 1.0) - seconds(tokens))
    # More tokens never take less, but of two durations between which a third lies the noise may say so.
    return [min(max(0.0, bound), 1.0) for bound in (begin, go_on)]


def goodput(expected: Sequence[Prospect], propose: Durations, verify: Durations) -> list[float]:
    """Return the expected tokens a second of rounds of 0, 1, … draft tokens.

    Args:
        expected: entry gamma for gamma.
        propose: durations of Propose calls; may know nothing, then only gamma 0 has a rate.
        verify: durations of Verify calls; must know something.
    """
    plain = 1.0 / verify.expected(0.0)
    if not propose.means:
        return [plain]
    return [plain] + [
        (1 + prospect.stood) / (propose.expected(prospect.proposed) + verify.expected(prospect.proposed))
        for prospect in expected[1:]
    ]
