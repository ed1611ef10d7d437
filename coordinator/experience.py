"""What the answers of a coordinator have shown together: acceptance, what calls take, what trials may cost.

Pure. Durations are kept by how many answers are being decoded at once, for a pass costs by that.
"""

from dataclasses import dataclass, field

from coordinator.goodput import Acceptance, Durations

TRIAL_SHARE = 0.01  # of all time that trials may lose
BUDGET_SECONDS = 1.0  # that may be saved up for them


@dataclass(slots=True)
class Costs:
    """What calls take at one load.

    Attributes:
        propose: durations by draft tokens that came.
        verify: durations by draft tokens verified.
        trials: made so far.
    """

    propose: Durations = field(default_factory=Durations)
    verify: Durations = field(default_factory=Durations)
    trials: int = 0


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
        self._costs: dict[int, Costs] = {}
        self._budget = 0.0

    @property
    def costs(self) -> Costs:
        """What calls take at the present load; loads are told apart by powers of two.

        An answer that has not read its prompt counts as load where it is alone: it is about to decode.
        """
        return self._costs.setdefault(max(self.decoding, 1).bit_length(), Costs())

    def earn(self, seconds: float) -> None:
        """Put a share of the time that a round took aside for trials."""
        self._budget = min(self._budget + TRIAL_SHARE * seconds, BUDGET_SECONDS)

    def pay(self, seconds: float) -> bool:
        """Take what a trial is expected to lose from the budget, if it is there."""
        if seconds > self._budget:
            return False
        self._budget -= max(seconds, 0.0)
        return True
