"""What the answers of a coordinator have shown together: acceptance, what calls take, what trials may cost.

Pure. Answers share the target's passes: what draft tokens add to one, all wait for. By what its own calls take alone,
each answer would find its draft tokens cheap, and all would pay. So the cost of a pass is kept by its tokens, whoever
they belong to, and a number of draft tokens is valued as if all answers had as many.
"""

from dataclasses import dataclass, field

from coordinator.durations import FORGET, OUTLIER, Durations
from coordinator.goodput import Acceptance
from coordinator.rounds import Verdict

TRIAL_SHARE = 0.01  # of all time that trials may lose
BUDGET_SECONDS = 1.0  # that may be saved up for them


@dataclass(slots=True)
class Usual:
    """Means over the rounds at one load.

    Attributes:
        seconds: of a Verify call.
        draft_tokens: that were verified.
        pass_tokens: in the pass that did it, of all answers.
        answers: decoded at once.
        rounds: seen so far.
    """

    seconds: float = 0.0
    draft_tokens: float = 0.0
    pass_tokens: float = 0.0
    answers: float = 1.0
    rounds: int = 0

    def add(self, draft_tokens: int, verdict: Verdict, answers: int) -> None:
        """Take a round in. As many rounds of each answer count as for a duration."""
        self.rounds += 1
        step = max(1 / self.rounds, (1 - FORGET) / answers)
        seconds = verdict.seconds if self.rounds == 1 else min(verdict.seconds, OUTLIER * self.seconds)
        self.seconds += step * (seconds - self.seconds)
        self.draft_tokens += step * (draft_tokens - self.draft_tokens)
        self.pass_tokens += step * (verdict.pass_tokens - self.pass_tokens)
        self.answers += step * (answers - self.answers)


@dataclass(slots=True)
class Costs:
    """What rounds take at one load.

    Attributes:
        passes: of the target, by their tokens; at every load.
        propose: Propose calls, by the draft tokens that came.
        verify: what Verify calls have been like.
        plain: whether one of them verified nothing.
        trials: made so far.
    """

    passes: Durations
    propose: Durations = field(default_factory=lambda: Durations(fixed=0.0))
    verify: Usual = field(default_factory=Usual)
    plain: bool = False
    trials: int = 0

    def verified(self, draft_tokens: int, verdict: Verdict, answers: int) -> None:
        """Learn what a Verify call took while so many answers were decoded."""
        share = (1 + draft_tokens) / verdict.pass_tokens
        self.passes.observe(verdict.pass_tokens, verdict.pass_seconds, share)
        self.verify.add(draft_tokens, verdict, answers)
        self.plain = self.plain or draft_tokens == 0

    def verify_seconds(self, draft_tokens: float) -> float:
        """Return what a Verify call takes when each answer has so many draft tokens, a mean number."""
        usual = self.verify
        more = usual.answers * (draft_tokens - usual.draft_tokens)
        one_pass = self.passes.expected(max(1.0, usual.pass_tokens + more))
        return max(one_pass, usual.seconds + one_pass - self.passes.expected(usual.pass_tokens))

    def round_seconds(self, draft_tokens: float) -> float:
        """Return what a round takes in which the draft is asked and so many draft tokens come, a mean number."""
        return self.propose.expected(draft_tokens) + self.verify_seconds(draft_tokens)


class Experience:
    """What is known.

    Attributes:
        acceptance: how far proposals stand.
        decoding: answers that are past their prompt.
    """

    def __init__(self) -> None:
        """Know nothing."""
        self.acceptance = Acceptance()
        self.decoding = 0
        self._passes = Durations()
        self._costs: dict[int, Costs] = {}
        self._budget = 0.0

    @property
    def costs(self) -> Costs:
        """What rounds take at the present load; loads are told apart by powers of two.

        An answer that has not read its prompt counts as load where it is alone: it is about to decode.
        """
        return self._costs.setdefault(max(self.decoding, 1).bit_length(), Costs(self._passes))

    def earn(self, seconds: float) -> None:
        """Put a share of the time that a round took aside for trials."""
        self._budget = min(self._budget + TRIAL_SHARE * seconds, BUDGET_SECONDS)

    def pay(self, seconds: float) -> bool:
        """Take what a trial is expected to lose from the budget; what is dearer than a full one leaves a debt."""
        if seconds > self._budget < BUDGET_SECONDS:
            return False
        self._budget -= max(seconds, 0.0)
        return True
