"""What the answers of a coordinator have shown together: acceptance, what calls take, what trials may cost.

Pure. Answers share the target's passes: what draft tokens add to one, all wait for. By what its own calls take alone,
each answer would find its draft tokens cheap, and all would pay. So the cost of a pass is kept by its tokens, whoever
they belong to, and a number of draft tokens is valued as if all answers had as many.
"""

from dataclasses import dataclass, field

from coordinator.durations import FORGET, OUTLIER, Durations
from coordinator.goodput import Acceptance
from coordinator.rounds import Drafted, Verdict

TRIAL_SHARE = 0.01  # of all time that trials may lose
BUDGET_SECONDS = 1.0  # that may be saved up for them
REGULAR_GAP = 32  # committed tokens that a server lacks in a round at most; more are a prompt, or catching up


@dataclass(slots=True)
class Usual:
    """A mean over the rounds at one load; as many of each answer count as for a duration.

    Attributes:
        value: the mean.
        rounds: seen so far.
    """

    value: float = 0.0
    rounds: int = 0

    def add(self, value: float, answers: int) -> None:
        """Take a round in, of one of so many answers that are decoded at once."""
        self.rounds += 1
        self.value += max(1 / self.rounds, (1 - FORGET) / answers) * (value - self.value)


@dataclass(slots=True)
class Costs:
    """What rounds take at one load.

    Who asks the draft comes later than those who do not, and may miss the pass that they share: what a Verify call
    takes beside its passes is known for both.

    Attributes:
        passes: of the target, by their tokens; at every load.
        propose: Propose calls, by the draft tokens that came.
        catch_up: what they take more when the draft has to catch up, by the committed tokens that it lacks.
        plain_wait: seconds of Verify calls beside their passes, where the draft was not asked, or failed.
        asked_wait: the same, where it was asked.
        draft_tokens: that were verified.
        pass_tokens: in the passes that did it, of all answers.
        answers: decoded at once.
        trials: made so far.
    """

    passes: Durations
    propose: Durations = field(default_factory=lambda: Durations(fixed=0.0))
    catch_up: Durations = field(default_factory=lambda: Durations(fixed=0.0))
    plain_wait: Usual = field(default_factory=Usual)
    asked_wait: Usual = field(default_factory=Usual)
    draft_tokens: Usual = field(default_factory=Usual)
    pass_tokens: Usual = field(default_factory=Usual)
    answers: Usual = field(default_factory=Usual)
    trials: int = 0

    def proposed(self, drafted: Drafted, lacked: int) -> None:
        """Learn what a Propose call took, of a draft that lacked so many committed tokens."""
        if lacked <= REGULAR_GAP:
            self.propose.observe(drafted.gamma, drafted.seconds)
        elif self.propose.means:
            self.catch_up.observe(lacked, max(0.0, drafted.seconds - self.propose.expected(drafted.gamma)))

    def verified(self, drafted: Drafted, verdict: Verdict, answers: int) -> None:
        """Learn what a Verify call took while so many answers were decoded."""
        share = (1 + drafted.gamma) / verdict.pass_tokens
        self.passes.observe(verdict.pass_tokens, verdict.pass_seconds, share)
        wait, other = self.plain_wait, self.asked_wait
        if drafted.asked:
            wait, other = other, wait
        usual = self.passes.expected(verdict.pass_tokens) or verdict.seconds  # a target need not say what a pass took
        # The first of a kind may have waited for anything, a connection, say.
        most = OUTLIER * usual if wait.rounds else OUTLIER * other.value if other.rounds else usual
        wait.add(min(max(0.0, verdict.seconds - verdict.pass_seconds), most), answers)
        self.draft_tokens.add(drafted.gamma, answers)
        self.pass_tokens.add(verdict.pass_tokens, answers)
        self.answers.add(answers, answers)

    @property
    def plain_seconds(self) -> float:
        """What a round without the draft takes when no answer has draft tokens."""
        return self.plain_wait.value + self._pass_seconds(0.0)

    def catch_up_seconds(self, lacking: int) -> float:
        """Return what a Propose call takes more while the draft lacks so many committed tokens."""
        return self.catch_up.expected(lacking) if lacking > REGULAR_GAP and self.catch_up.means else 0.0

    def round_seconds(self, draft_tokens: float) -> float:
        """Return what a round takes in which the draft is asked and so many draft tokens come, a mean number."""
        wait = self.asked_wait if self.asked_wait.rounds else self.plain_wait
        return self.propose.expected(draft_tokens) + wait.value + self._pass_seconds(draft_tokens)

    def _pass_seconds(self, draft_tokens: float) -> float:
        """Return what the pass takes when each answer has so many draft tokens, a mean number."""
        more = self.answers.value * (draft_tokens - self.draft_tokens.value)
        return self.passes.expected(max(1.0, self.pass_tokens.value + more))


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
        if seconds > max(self._budget, 0.0) and self._budget < BUDGET_SECONDS:
            return False
        self._budget -= max(seconds, 0.0)
        return True
