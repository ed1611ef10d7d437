"""A forward pass that fails in mid-proposal: guesses take the place of what is missing, for the law's sake."""

import logging
from functools import partial

import pytest

from draft_service.drafting import GUESS, Draft, DraftLimits, draw
from draft_service.lookup import Lookups
from draft_service.lookup_drafting import ComposedDraft, matches
from specdec.errors import SpecdecError
from specdec.fence import Fence
from specdec.model.engine import Engine, EngineLimits
from specdec.model.loading import load_model
from specdec.parameters import SamplingParams, Verification
from specdec.prefix import CommittedPrefix, PrefixDigest
from specdec.proposal import SparseDistribution

GAMMA = 4
COMMITTED = (1, 2, 3, 4, 0, 5, 1, 2)  # after 1, 2 came 3, 4 and 0


class Failing:
    """A model whose passes fail from one on, counted from 1."""

    def __init__(self, model, fails_from):
        self._model, self._left = model, fails_from - 1

    def __getattr__(self, name):
        return getattr(self._model, name)

    def forward(self, segments):
        if self._left == 0:
            raise RuntimeError("out of memory")
        self._left -= 1
        return self._model.forward(segments)


async def proposal_of(fails_from, make=Draft):
    """Return what is proposed, and how many committed tokens are said to be held."""
    model = load_model("synthetic:vocabulary=8,seed=3")
    engine = Engine(Failing(model, fails_from), draw, EngineLimits(64, 8, 4096, 64, 3600.0))
    engine.start()
    prefix = CommittedPrefix("s", Fence(1, "0" * 32), 0, PrefixDigest().digest(), COMMITTED, 1)
    params = SamplingParams(temperature=1.0, seed=5)
    try:
        return (await engine.run(make(prefix, params, GAMMA, Verification.BLOCK, DraftLimits(8, 4096, 64, ())))).result
    finally:
        await engine.close()


@pytest.fixture(autouse=True)
def quiet(caplog):
    caplog.set_level(logging.CRITICAL)


@pytest.mark.parametrize("fails_from", [2, 3, 4])
async def test_drawn_tokens_stay_and_guesses_follow(fails_from):
    whole, cut = await proposal_of(9), await proposal_of(fails_from)
    kept = fails_from - 1
    assert cut.draft_tokens == (*whole.draft_tokens[:kept], *[GUESS] * (GAMMA - kept))
    assert cut.draft_distributions[:kept] == whole.draft_distributions[:kept]
    assert set(cut.draft_distributions[kept:]) == {SparseDistribution((GUESS,), (1.0,))}


async def test_before_the_first_token_it_fails():
    with pytest.raises(SpecdecError, match="forward pass"):
        await proposal_of(1)


async def test_tokens_of_a_lookup_stay_too():
    make = partial(ComposedDraft, source=partial(matches, Lookups(2, 8, 4096)))
    cut = await proposal_of(1, make)
    assert cut.draft_tokens[0] == 3
    assert cut.gamma == GAMMA
