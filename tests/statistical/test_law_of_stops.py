"""Proposals that end where no further token is worth it: the law is the target's, whatever the bounds are."""

from collections import Counter
from functools import partial

import pytest

from draft_service.drafting import Draft
from draft_service.lookup import Lookups
from draft_service.lookup_drafting import ComposedDraft, LookupDraft, matches, own_tokens
from draft_service.survival import PRIOR_RATES, Calibration, Stop, lookup_grade, model_grade
from specdec.parameters import Verification
from tests.statistical.cases import GAMMAS, params_of, rows_of
from tests.statistical.chi_square import FAILS_ABOVE, z_score
from tests.statistical.enumeration import target_law
from tests.statistical.sessions import Sessions
from tests.statistical.test_law_of_lookups import REPEATING

TARGET, DRAFT, LENGTH, SESSIONS = 1, 2, 3, 400
HOT = params_of("hot", "none")
BOUNDS = (0.5, 0.3)
FIRST_ALWAYS = (0.0, 0.3)  # what hardly stands is proposed too, and no model is asked after it
NEVER = {*map(model_grade, (0.05, 0.15, 0.25, 0.35, 0.45, 0.55)), lookup_grade(2)}  # are taken to stand


def calibration():
    """Return one under which some proposals end early, by what is drawn or by what has matched."""
    known = Calibration()
    for grade in range(len(PRIOR_RATES)):
        for _ in range(100):
            known.learn([grade], grade not in NEVER)
    return known


class LeavesOut(Draft):
    """Draws a token, looks at it, and leaves it out."""

    def done(self):
        if self.stop.over and not self.full:
            del self.draft_tokens[-1:], self.draft_distributions[-1:]
        return super().done()


class Lengths:
    """A kind of draft with bounds, and the lengths of its proposals."""

    def __init__(self, kind, bounds=BOUNDS, **more):
        self._kind, self._bounds, self._more = kind, bounds, more
        self.drafts = []

    def __call__(self, *fields):
        self.drafts.append(self._kind(*fields, Stop(calibration(), self._bounds), **self._more))
        return self.drafts[-1]

    def z_of(self, way, sessions=SESSIONS):
        """Return how far sessions are from the law."""
        answers = Sessions(TARGET, DRAFT, HOT, way, GAMMAS["4"], kind=self, prompt=REPEATING)
        return z_score(Counter(answers.answers(range(sessions), LENGTH)), target_law(rows_of(TARGET, HOT), LENGTH))

    @property
    def seen(self):
        return {len(draft.draft_tokens) for draft in self.drafts}


KINDS = {
    "model": partial(Lengths, Draft),
    "lookup": lambda: Lengths(LookupDraft, source=partial(own_tokens, Lookups(2, SESSIONS, 10**6))),
    "lookup before a model": lambda: Lengths(
        ComposedDraft, FIRST_ALWAYS, source=partial(matches, Lookups(2, SESSIONS, 10**6))
    ),
}


@pytest.mark.parametrize("way", Verification)
@pytest.mark.parametrize("kind", KINDS)
def test_the_law_is_the_targets(kind, way):
    lengths = KINDS[kind]()
    assert lengths.z_of(way) < FAILS_ABOVE
    assert len(lengths.seen) > 1


@pytest.mark.parametrize("way", [Verification.TOKEN, Verification.BLOCK])
def test_control_a_draft_that_leaves_out_what_it_has_drawn(way):
    assert Lengths(LeavesOut).z_of(way, 3 * SESSIONS) > 2 * FAILS_ABOVE
