"""What is drafted ahead changes when a proposal is there, and nothing of what it says."""

import asyncio
import copy
import itertools
from functools import partial

import pytest
import torch
from prometheus_client import CollectorRegistry

from draft_service import drafting
from draft_service.drafting import Draft, DraftLimits, draw
from draft_service.foresight import DraftAhead, Foresight, ForesightedDraft
from draft_service.survival import Calibration, Proposed, Stop, TrackRecord, model_grade
from specdec.errors import InvalidProposal
from specdec.fence import Fence
from specdec.model.engine import Engine, EngineLimits
from specdec.model.language_model import Branches, Segment
from specdec.model.loading import load_model
from specdec.parameters import SamplingParams, Verification
from specdec.prefix import CommittedPrefix, PrefixDigest
from specdec.sampling import RowContext, distributions
from specdec.verification import check_draws, verify
from tests.engines import state_of

VOCABULARY, CONTEXT, LENGTH = 24, 96, 60
TARGET = f"synthetic:vocabulary={VOCABULARY},seed=1,order=2,context={CONTEXT}"
DRAFT = f"{TARGET},agreement=0.7"
PROMPT = [3, 1, 4]
CALIBRATION = Calibration()  # likely tokens stand, others do not
for likelihood in range(20):
    for _ in range(50):
        CALIBRATION.learn([model_grade(likelihood / 20)], likelihood > 4)
BOUNDS = (0.0, 0.3)
PARAMS = {
    "hot": {"temperature": 1.0},
    "greedy": {"temperature": 0.0},
    "penalties": {"temperature": 0.9, "repetition_penalty": 1.2, "frequency_penalty": 0.3, "min_new_tokens": 40},
    "cuts": {"temperature": 1.2, "top_k": 12, "top_p": 0.95, "min_p": 0.01},
    "greedy_penalties": {"temperature": 0.0, "presence_penalty": 0.5, "repetition_penalty": 1.3},
}


class Drafting:
    """A draft's engine in an ``async with``, with or without drafting ahead.

    Attributes:
        model: in float64.
        found: draft tokens that were there, of each call for whose session something had been drafted ahead.
    """

    def __init__(self, ahead_tokens, bounds=()):
        self.model = load_model(DRAFT, dtype="float64")
        self.engine = Engine(self.model, draw, EngineLimits(64, 8, 4096, 64, 3600.0, ahead_tokens))
        self._make = Draft
        if ahead_tokens:
            self._make = partial(ForesightedDraft, foresight=Foresight(ahead_tokens, CollectorRegistry()))
        self._record = TrackRecord(8)
        self._stop = lambda way, params: self._record.stop(way, greedy=params.greedy, bounds=())
        if bounds:
            self._stop = lambda *_: Stop(copy.deepcopy(CALIBRATION), bounds)
        self.found = []

    async def __aenter__(self):
        self.engine.start()
        return self

    async def __aexit__(self, *_):
        await self.engine.close()

    async def propose(self, committed, gamma, params, way, *, start=0, claim=1, prompt_length=3):
        digest = PrefixDigest(committed[:start]).digest()
        prefix = CommittedPrefix("s", Fence(claim, "0" * 32), start, digest, tuple(committed[start:]), prompt_length)
        stop = self._stop(way, params)
        draft = self._make(prefix, params, gamma, way, DraftLimits(VOCABULARY, CONTEXT, 64, (VOCABULARY - 1,)), stop)
        answer = await self.engine.run(draft)
        self._record.learn(prefix)
        self._record.note("s", Proposed(len(committed), answer.result.draft_tokens, stop))
        if getattr(draft, "ahead_tokens", None) is not None:
            self.found.append(draft.ahead_tokens)
        return answer

    async def rest(self):
        """Wait until all that can be drafted ahead has been."""
        await self.engine.release("nobody", Fence(1, "0" * 32), 0)
        while self.engine._batching.ahead.pending:  # noqa: ASYNC110
            await asyncio.sleep(0)


async def story(drafting, params, way, gammas=(4,), idle=lambda _: True):
    """Play rounds with a target until the answer is long enough. Return all proposals and the text."""
    target, committed, proposals, start = load_model(TARGET, dtype="float64"), list(PROMPT), [], 0
    for index, gamma in enumerate(itertools.cycle(gammas)):
        if len(committed) > LENGTH:
            return proposals, committed
        answer = await drafting.propose(committed, gamma, params, way, start=start)
        start, proposal = answer.cached_length, answer.result
        check_draws(proposal, VOCABULARY, way, params.seed, len(committed))
        proposals.append(proposal)
        if idle(index):
            await drafting.rest()
        with torch.inference_mode():
            fed = [*committed, *proposal.draft_tokens]
            (logits,) = target.forward([Segment(target.new_cache(), fed, proposal.gamma + 1)])
        drafted = [proposal.draft_tokens[:place] for place in range(proposal.gamma + 1)]
        rows = [RowContext(params, committed, len(PROMPT), each, (VOCABULARY - 1,)) for each in drafted]
        verdict = verify(proposal, distributions(logits, rows), way, params.seed, len(committed))
        committed += [*proposal.draft_tokens[: verdict.accept_index], int(verdict.next_token)]
    raise AssertionError


SOME = [
    ("TOKEN", "hot"),
    ("TOKEN", "greedy"),
    ("BLOCK", "cuts"),
    ("COUPLED", "penalties"),
    ("COUPLED", "greedy_penalties"),
]
REST = [pair for pair in itertools.product(Verification.__members__, PARAMS) if pair not in SOME]


@pytest.mark.parametrize(("way", "name"), [*SOME, *(pytest.param(*pair, marks=pytest.mark.long) for pair in REST)])
async def test_proposals_and_text_are_those_without_it_to_the_bit(way, name):
    params = SamplingParams(seed=11, **PARAMS[name])
    play = partial(story, params=params, way=Verification[way], gammas=(4, 2, 5, 0, 3, 1))
    async with Drafting(0) as plain, Drafting(8) as ahead:
        expected = await play(plain)
        assert await play(ahead, idle=lambda index: index % 4 != 1) == expected
    assert 0 < max(ahead.found) <= 5
    assert len(set(ahead.found)) > 2


@pytest.mark.parametrize("way", Verification)
async def test_with_bounds_too(way):
    play = partial(story, params=SamplingParams(seed=11), way=way, gammas=(5,))
    async with Drafting(0, BOUNDS) as plain, Drafting(8, BOUNDS) as ahead:
        expected = await play(plain)
        assert await play(ahead) == expected
    assert len({proposal.gamma for proposal in expected[0]}) > 1
    assert max(ahead.found) > 0


async def test_near_the_end_of_the_context_too():
    params = SamplingParams(seed=2, temperature=0.8)
    async with Drafting(0) as plain, Drafting(16) as ahead:
        for length in range(CONTEXT - 6, CONTEXT + 1):
            committed = [(7 * place) % VOCABULARY for place in range(length)]
            expected = await plain.propose(committed, 4, params, Verification.TOKEN)
            answer = await ahead.propose(committed, 4, params, Verification.TOKEN)
            assert answer.result == expected.result
            await ahead.rest()
        assert (await state_of(ahead.engine)).failed_passes_ahead == 0


def draws_of_the_round_before(drafts, device):
    keys = [(draft.params.seed, draft.prefix.base_length, draft.position) for draft in drafts]
    values = [drafting.uniform(*key, drafting.Purpose.DRAFT) for key in keys]
    return torch.tensor(values, dtype=torch.float64, device=device)


@pytest.mark.parametrize("way", [Verification.TOKEN, Verification.BLOCK])
async def test_control_draws_of_the_round_before_would_be_seen(monkeypatch, way):
    params = SamplingParams(seed=11, temperature=1.0)
    async with Drafting(0) as plain, Drafting(8) as ahead:
        monkeypatch.setattr(drafting, "_draft_draws", draws_of_the_round_before)
        await story(plain, params, way)  # of a call's own round
        with pytest.raises(InvalidProposal, match="not the one its draw gives"):
            await story(ahead, params, way)


async def test_control_noise_of_another_position_would_be_seen(monkeypatch):
    params = SamplingParams(seed=11, temperature=1.0)
    async with Drafting(0) as plain, Drafting(8) as ahead:
        expected = await story(plain, params, Verification.COUPLED)
        monkeypatch.setattr(DraftAhead, "position", property(lambda draft: Draft.position.fget(draft) + 1))
        proposals, text = await story(ahead, params, Verification.COUPLED)
    assert text[:LENGTH] == expected[1][:LENGTH]  # it depends on target, prompt and seed alone
    assert proposals != expected[0]


OTHERS = {
    "fence": {"claim": 2},
    "params": {"params": SamplingParams(seed=11, temperature=0.9)},
    "way": {"way": Verification.BLOCK},
    "answer": {"prompt_length": len(PROMPT) + 1},
}


@pytest.mark.parametrize("other", [None, *OTHERS])
async def test_only_the_very_call_that_was_foreseen_finds_anything(other):
    ask = {"gamma": 4, "params": SamplingParams(seed=11, temperature=1.0), "way": Verification.TOKEN}
    async with Drafting(8) as ahead:
        await ahead.propose(PROMPT, **ask)
        await ahead.rest()
        (prospect,) = [session.prospect for session in ahead.engine._batching.caches]
        likely = max(prospect.branches, key=lambda branch: branch.weight)
        committed = list(likely.work.committed)
        answer = await ahead.propose(committed, **(ask | OTHERS.get(other, {})))
        assert (answer.passes, ahead.found) == ((4, [0]) if other else (0, [4]))


@pytest.mark.parametrize("way", Verification)
async def test_branches_that_are_not_finite_are_not_used(monkeypatch, way):
    params = SamplingParams(seed=11, temperature=1.0)
    async with Drafting(0) as plain, Drafting(8) as ahead:
        forward = ahead.model.forward

        def broken(segments):
            logits = forward(segments)
            return [
                torch.full_like(rows, torch.nan) if isinstance(segment, Branches) else rows
                for segment, rows in zip(segments, logits, strict=True)
            ]

        monkeypatch.setattr(ahead.model, "forward", broken)
        assert await story(ahead, params, way) == await story(plain, params, way)
    assert set(ahead.found) == {0}


async def test_most_calls_find_all_of_their_tokens_where_the_target_takes_its_time():
    async with Drafting(24) as ahead:
        await story(ahead, SamplingParams(seed=3, temperature=1.0), Verification.COUPLED)
    assert ahead.found.count(4) > 0.8 * len(ahead.found)
