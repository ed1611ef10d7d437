"""Whether a proposal comes must not depend on its tokens, not even through the room that they take when fed."""

from functools import partial

import pytest

from draft_service.drafting import Draft, DraftLimits, draw
from draft_service.lookup import Lookups
from draft_service.lookup_drafting import ComposedDraft, matches
from specdec.errors import CacheFull
from specdec.fence import Fence
from specdec.model.engine import Engine, EngineLimits
from specdec.model.kv_cache import STEP
from specdec.model.loading import load_model
from specdec.parameters import SamplingParams, Verification
from specdec.prefix import CommittedPrefix, PrefixDigest

# Exactly one step of room. Its end is new, so the model draws what follows: 4, 1, 6 or 7. After 4 more is known (7, 4,
# then 5), which takes no room; after the others the model is fed, which takes another step.
COMMITTED = (*[4, 5, 6, 7] * (STEP // 4 - 1), 0, 2, 2, 7)
SEEDS = range(40)


def prefix_of(tokens, session_id):
    return CommittedPrefix(session_id, Fence(1, "0" * 32), 0, PrefixDigest().digest(), tuple(tokens), 1)


async def outcomes(cache_tokens):
    """Return the seeds whose proposal came, those refused, and the first tokens drawn."""
    model = load_model("synthetic:vocabulary=8,seed=3")
    engine = Engine(model, draw, EngineLimits(64, 1000, cache_tokens, 64, 3600.0))
    engine.start()
    limits = DraftLimits(8, 4096, 64, ())
    lookups = Lookups(2, 64, 10**6)
    came, refused, first = [], [], set()
    try:
        await engine.run(Draft(prefix_of([1] * 9, "other"), SamplingParams(), 1, Verification.BLOCK, limits))
        for seed in SEEDS:
            draft = ComposedDraft(
                prefix_of(COMMITTED, "s"), SamplingParams(temperature=1.0, seed=seed), 2, Verification.BLOCK, limits,
                source=partial(matches, lookups),
            )  # fmt: skip
            try:
                first.add((await engine.run(draft)).result.draft_tokens[0])
                came.append(seed)
            except CacheFull:
                refused.append(seed)
    finally:
        await engine.close()
    return came, refused, first


async def test_with_room_every_proposal_comes_and_they_differ():
    came, refused, first = await outcomes(10**6)
    assert came == list(SEEDS)
    assert not refused
    assert {4, 7} <= first


@pytest.mark.parametrize("steps", [2, 3])
async def test_at_the_edge_of_the_room_all_come_or_none(steps):
    came, refused, _ = await outcomes(steps * STEP)
    assert not came or not refused
    assert bool(came) is (steps == 3)
