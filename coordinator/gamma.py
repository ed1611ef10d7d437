"""How many draft tokens to ask for: what a request fixes, or what measurement says brings the most tokens a second.

Pure. The number depends on how earlier rounds went and how long they took, and on nothing that the draws of the coming
round decide: neither its own draft tokens, nor the rounds of another session that may have the same seed.
"""

from abc import ABC, abstractmethod

from coordinator.experience import REGULAR_GAP, Costs, Experience
from coordinator.goodput import Acceptance, goodput, least_survival, prospects
from coordinator.rounds import Round
from specdec.parameters import SamplingParams, Verification

BETTER = 1.03  # times the present rate that another gamma must promise before it is taken up
WORTH = 1.05  # times plain decoding's rate: drafting takes more of the machines than the durations of its calls show
ROUNDS_BETWEEN = 4  # rounds that a choice stands at least
FIRST_GAMMA = 4  # asked for while nothing is known at a load


class Policy(ABC):
    """Chooses gamma for one answer, and adds what its rounds show to the experience of all.

    Attributes:
        own: how far this answer's proposals stand.
        fleet: how far those of others stand.
        experience: what calls take.
        min_survival: of the coming round's draft tokens; see ``ProposeRequest``.
    """

    def __init__(self, experience: Experience, *, shared: bool) -> None:
        """Begin with an answer whose prompt has not been read.

        Args:
            experience: of the coordinator.
            shared: proposals are learnt of together with other answers; see ``may_share``.
        """
        self.own = Acceptance()
        self.fleet = experience.acceptance if shared else Acceptance()
        self.experience = experience
        self.min_survival: list[float] = []
        self._decoding = False
        self._read = 0  # tokens that the draft holds, as far as is known

    @abstractmethod
    def choose(self, max_gamma: int, length: int) -> int:
        """Return the draft tokens to ask for in the coming round.

        Args:
            max_gamma: the most that may be asked for.
            length: committed tokens of the session.
        """

    def observe(self, round_: Round) -> None:
        """Learn from a round; one whose proposal failed says only what verifying nothing takes."""
        self._count(decoding=True)
        drafted, verdict, costs = round_.drafted, round_.verdict, self.experience.costs
        if drafted.asked:
            for acceptance in (self.own, self.fleet):
                acceptance.observe(drafted.asked, drafted.gamma, verdict.accept_index)
            costs.proposed(drafted, round_.base_length - drafted.reused_length)
            self._read = round_.base_length
        if round_.base_length - verdict.reused_length <= REGULAR_GAP:
            costs.verified(drafted, verdict, self.experience.decoding)

    def close(self) -> None:
        """End with the answer."""
        self._count(decoding=False)

    def _count(self, *, decoding: bool) -> None:
        self.experience.decoding += decoding - self._decoding
        self._decoding = decoding


class Fixed(Policy):
    """Always the same gamma."""

    def __init__(self, experience: Experience, gamma: int, *, shared: bool) -> None:
        """Ask for gamma draft tokens, 0 for off."""
        super().__init__(experience, shared=shared)
        self._gamma = gamma

    def choose(self, max_gamma: int, length: int) -> int:  # noqa: ARG002
        """Return the fixed number, as far as it is allowed."""
        return min(self._gamma, max_gamma)


class Adaptive(Policy):
    """The gamma that is expected to bring the most tokens a second, 0 included.

    An answer learns how far its own proposals stand and begins with what the fleet has seen. What is not in use is
    tried again from time to time, within a budget of time that trials may lose. Where answers may learn of each other
    the draft is told to end a proposal of which no further token is worth its time.
    """

    def __init__(self, experience: Experience, *, shared: bool) -> None:
        """Begin with what the fleet knows."""
        super().__init__(experience, shared=shared)
        self._shared = shared
        self.min_survival = [0.0] if shared else []
        self._gamma = 0
        self._stood = ROUNDS_BETWEEN

    def observe(self, round_: Round) -> None:
        """Learn from a round, and put a share of its time aside for trials: answers that try nothing earn none."""
        super().observe(round_)
        self.experience.earn(round_.drafted.seconds + round_.verdict.seconds)

    def choose(self, max_gamma: int, length: int) -> int:
        """Return the best known number, or another one whose turn to be tried has come."""
        costs = self.experience.costs
        if not costs.propose.means:  # nor while the draft is away
            return min(FIRST_GAMMA, max_gamma)
        if not costs.plain_wait.rounds:
            return 0
        return self._by_rate(costs, max_gamma, length)

    def _by_rate(self, costs: Costs, max_gamma: int, length: int) -> int:
        expected = prospects(self.own, self.fleet, max_gamma)
        rates = goodput(expected, costs.plain_seconds, costs.round_seconds)
        self._settle(rates)
        usual = min(self._gamma, len(rates) - 1)
        other = _candidate(rates, usual, costs.trials)
        lost = (1 + expected[other].stood) * (1 / rates[other] - 1 / rates[usual])
        lost += costs.catch_up_seconds(length - self._read) if not usual else 0.0  # else it is read anyway
        trial = other != usual and self.experience.pay(lost)
        gamma = other if trial else usual
        costs.trials += trial
        if self._shared and gamma:
            begin, go_on = least_survival(expected, costs.round_seconds, gamma, rates[usual])
            # A trial is to show what so many take: what is known by now must not end it before.
            self.min_survival = [begin, 0.0 if trial else go_on]
        return gamma

    def _settle(self, rates: list[float]) -> None:
        """Take the best gamma up when it is clearly better and the last choice has stood for a while."""
        self._stood += 1
        values = [rates[0], *(rate / WORTH for rate in rates[1:])]
        best = max(range(len(values)), key=values.__getitem__)
        present = values[min(self._gamma, len(values) - 1)]
        if self._stood > ROUNDS_BETWEEN and values[best] > BETTER * present:
            self._gamma, self._stood = best, 0


def policy_of(gamma: int | None, experience: Experience, *, shared: bool) -> Policy:
    """Return the policy a request asks for.

    Args:
        gamma: draft tokens a round, 0 for off; None leaves the choice to us.
        experience: see ``Policy``.
        shared: see ``Policy``.
    """
    return Adaptive(experience, shared=shared) if gamma is None else Fixed(experience, gamma, shared=shared)


def may_share(params: SamplingParams, verification: Verification, *, fresh_seed: bool) -> bool:
    """Tell whether what other answers have seen may choose gamma for this one, and the other way round.

    With TOKEN and BLOCK another answer of the same seed has the same draws, so its outcomes would tell of the coming
    ones. Greedy and COUPLED answers are the same whatever gamma is, and what COUPLED draws is none of TOKEN's.

    Args:
        params: of the answer.
        verification: of its proposals.
        fresh_seed: its seed was drawn for this answer alone.
    """
    return fresh_seed or params.greedy or verification is Verification.COUPLED


def _candidate(rates: list[float], usual: int, turn: int) -> int:
    """Return what may be tried next: off, the best that is on, a little less and a little more take turns."""
    best_on = max(range(1, len(rates)), key=rates.__getitem__, default=0)
    wanted = {0, best_on, usual - 1, usual + 1, 2 * usual} - {usual}
    candidates = sorted(gamma for gamma in wanted if 0 <= gamma < len(rates))
    return candidates[turn % len(candidates)] if candidates else usual


def within_answer(gamma: int, remaining: int) -> int:
    """Limit gamma to what a round may commit.

    Args:
        gamma: draft tokens wanted.
        remaining: tokens the answer may still have, at least 1; the target adds one of them itself.
    """
    return min(gamma, remaining - 1)


def within_draft(gamma: int, base_length: int, context_length: int, max_gamma: int) -> int:
    """Limit gamma to what the draft can propose; 0 when the session has outgrown it.

    The draft never feeds the last draft token, so its context may end one before it.

    Args:
        gamma: draft tokens wanted.
        base_length: committed tokens.
        context_length: tokens the draft can hold.
        max_gamma: draft tokens it proposes at most.
    """
    return max(0, min(gamma, context_length - base_length + 1, max_gamma))
