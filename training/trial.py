"""What a finished draft is worth: acceptance and cost, measured with the draft as it will be served."""

from dataclasses import dataclass

from specdec.model.language_model import LanguageModel
from training.acceptance import acceptance
from training.corpus import Corpus
from training.pass_cost import expected_speedup, pass_seconds


@dataclass(frozen=True, slots=True)
class Trial:
    """Measurements of a draft.

    Attributes:
        held_out: α on answers like those of the fit.
        fresh: α on answers to prompts that nothing was fitted on.
        draft_seconds: of a pass of one token.
        target_seconds: of a pass of one token of the target's, on the same machine.
    """

    held_out: float
    fresh: float
    draft_seconds: float
    target_seconds: float

    @property
    def lines(self) -> list[str]:
        """The measurements in words."""
        cost = self.draft_seconds / self.target_seconds
        gain, gamma = expected_speedup(self.fresh, cost)
        return [
            f"α {self.held_out:.3f} on answers like the fit's, {self.fresh:.3f} on fresh prompts (temperature 1)",
            f"a pass of one token: {self.draft_seconds * 1e3:.1f} ms, the target's {self.target_seconds * 1e3:.1f} ms, "
            f"cost {cost:.3f}",
            f"expected speed-up {gain:.2f} at γ = {gamma}, counting passes alone",
        ]


def tried(target: LanguageModel, draft: LanguageModel, corpus: Corpus) -> Trial:
    """Measure a draft against its target, on one machine in one go."""
    return Trial(
        held_out=acceptance(target, draft, corpus.held_out),
        fresh=acceptance(target, draft, corpus.fresh),
        draft_seconds=pass_seconds(draft),
        target_seconds=pass_seconds(target),
    )
