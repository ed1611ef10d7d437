"""How likely draft tokens are to stand, as earlier ones of their grade did, and so where a proposal had better end.

A grade is a class of draft tokens that stand about equally often: a model's go by how likely the token was to it, a
lookup's by how many tokens before it matched.

Exactness. To end a proposal may depend on a draft token only once that is in the proposal: to draw one, look at it and
leave it out is a bias. And it may depend on no draw of the round elsewhere. So calls with bounds, which their caller
sends for answers that no other with the same draws can tell of, learn from each other alone.

Source: to go on while a further token's chance to stand is worth its cost is the rule of the best ratio; that a bound
on the chance is optimal: Huang et al. 2024 (arXiv 2405.19715, section 3).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from draft_service.lookup import LONGEST
from specdec.parameters import Verification
from specdec.prefix import CommittedPrefix, common_length

MODEL_GRADES = 10
PRIOR_TRIALS = 8.0  # that the prior rate of a grade counts for
MODEL_PRIOR = 0.7
PRIOR_RATES = [MODEL_PRIOR] * MODEL_GRADES + [(1 + matched) / (4 + matched) for matched in range(LONGEST + 1)]
MEMORY = 300.0  # trials that a grade remembers; of more the older ones fade
LEFT_OUT = 0.99  # what is known of a grade still weighs when a token of it was left out: so it is tried again


def model_grade(likelihood: float) -> int:
    """Return the grade of a token that a model has held for so likely, 0 to 1."""
    return min(int(likelihood * MODEL_GRADES), MODEL_GRADES - 1)


def lookup_grade(matched: int) -> int:
    """Return the grade of a token that followed as many matching tokens, 0 (only in other sessions) to ``LONGEST``."""
    return MODEL_GRADES + matched


class Calibration:
    """How often draft tokens stand, by grade."""

    def __init__(self) -> None:
        """Know nothing but the prior."""
        self._trials = [0.0] * len(PRIOR_RATES)
        self._stood = [0.0] * len(PRIOR_RATES)

    def rate(self, grade: int) -> float:
        """Return the share of tokens that stand, of those tested."""
        stood, trials = self._stood[grade], self._trials[grade]
        return (stood + PRIOR_TRIALS * PRIOR_RATES[grade]) / (trials + PRIOR_TRIALS)

    @property
    def usual(self) -> float:
        """The share of tokens of any grade that stand."""
        return (sum(self._stood) + PRIOR_TRIALS * MODEL_PRIOR) / (sum(self._trials) + PRIOR_TRIALS)

    def learn(self, grades: Sequence[int], accept_index: int) -> None:
        """Take in a round that came to its end: the draft tokens up to the first that did not stand were tested."""
        for index, grade in enumerate(grades[: accept_index + 1]):
            self._fade(grade, min(1.0, MEMORY / (self._trials[grade] + 1.0)))
            self._trials[grade] += 1.0
            self._stood[grade] += index < accept_index

    def leave_out(self, grade: int) -> None:
        """Know a little less of a grade that was not worth proposing."""
        self._fade(grade, LEFT_OUT)

    def _fade(self, grade: int, weight: float) -> None:
        self._trials[grade] *= weight
        self._stood[grade] *= weight


@dataclass(slots=True)
class Stop:
    """Where one proposal ends.

    Attributes:
        calibration: of drafts like this one.
        bounds: how likely the first, second, … draft token must be to stand, with all before it, to be worth proposing;
            the last one goes for all that follow. Empty: every one is.
        grades: of the draft tokens.
        survival: how likely all of them stand.
        left_out: grades of tokens that were known and not proposed.
    """

    calibration: Calibration = field(default_factory=Calibration)
    bounds: Sequence[float] = ()
    grades: list[int] = field(default_factory=list)
    survival: float = 1.0
    left_out: list[int] = field(default_factory=list)

    def worth(self, rate: float) -> bool:
        """Whether a further token that stands at a rate, if all before it do, is worth proposing."""
        if not self.bounds:
            return True
        return self.survival * rate >= self.bounds[min(len(self.grades), len(self.bounds) - 1)]

    def takes(self, grade: int) -> bool:
        """Whether a token of a grade is worth proposing, known before it is drawn; notes it if not."""
        worth = self.worth(self.calibration.rate(grade))
        if not worth:
            self.left_out.append(grade)
        return worth

    def add(self, grade: int) -> None:
        """Count a draft token."""
        self.grades.append(grade)
        self.survival *= self.calibration.rate(grade)

    @property
    def over(self) -> bool:
        """Whether no further token is worth it, as far as the draft tokens say; never before the first."""
        return bool(self.grades) and not self.worth(self.calibration.usual)


@dataclass(frozen=True, slots=True)
class Proposed:
    """What became of it is not known yet.

    Attributes:
        base_length: committed tokens before it.
        draft_tokens: [gamma] ids.
        stop: where it ended.
    """

    base_length: int
    draft_tokens: Sequence[int]
    stop: Stop


class TrackRecord:
    """What became of the proposals of all sessions; for the event loop's thread."""

    def __init__(self, max_sessions: int) -> None:
        """Start without experience; proposals of the newest ``max_sessions`` sessions are followed."""
        self._max_sessions = max_sessions
        self._calibrations: dict[tuple[Verification, bool, bool], Calibration] = {}
        self._proposed: dict[str, Proposed] = {}

    def stop(self, verification: Verification, *, greedy: bool, bounds: Sequence[float]) -> Stop:
        """Return where a proposal has to end."""
        kind = (verification, greedy, bool(bounds))
        return Stop(self._calibrations.setdefault(kind, Calibration()), bounds)

    def note(self, session_id: str, proposed: Proposed) -> None:
        """Remember what a session was answered."""
        for grade in proposed.stop.left_out:
            proposed.stop.calibration.leave_out(grade)
        self._proposed[session_id] = proposed
        if len(self._proposed) > self._max_sessions:
            del self._proposed[next(iter(self._proposed))]

    def learn(self, prefix: CommittedPrefix) -> None:
        """Look what has been committed since a session's last proposal."""
        proposed = self._proposed.pop(prefix.session_id, None)
        if proposed is None or not prefix.start <= proposed.base_length:
            return
        block = prefix.tokens[proposed.base_length - prefix.start :]
        if 1 <= len(block) <= len(proposed.draft_tokens) + 1:
            proposed.stop.calibration.learn(proposed.stop.grades, common_length(proposed.draft_tokens, block[:-1]))
