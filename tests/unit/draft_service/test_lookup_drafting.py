"""Proposals of what followed before, alone and before a model: where tokens come from, and that they are drawn so."""

from functools import partial

import pytest
import torch

from draft_service.drafting import Draft, DraftLimits, draw
from draft_service.lookup import Lookups
from draft_service.lookup_drafting import (
    ComposedDraft,
    LookupDraft,
    matches,
    own_and_shared_tokens,
    own_tokens,
)
from draft_service.shared_steps import SharedSteps
from specdec.draws import gumbel_noise
from specdec.errors import InvalidParameter, InvalidProposal
from specdec.fence import Fence
from specdec.model.work import Feed
from specdec.parameters import SamplingParams, Verification
from specdec.prefix import CommittedPrefix
from specdec.proposal import SparseDistribution
from specdec.verification import check_draws

VOCABULARY = 12
LIMITS = DraftLimits(VOCABULARY, context_length=40, support_size=4, end_token_ids=(11,))
VARIED = (1, 2, 3, 1, 2, 4, 1, 2, 3, 5, 1, 2)  # 3, 4 and 3 follow (1, 2)


def a_draft(kind, source, committed, gamma=4, verification=Verification.TOKEN, prompt_length=None, **params):
    params = {"temperature": 1.0, "seed": 5} | params
    length = prompt_length or len(committed)
    prefix = CommittedPrefix("s", Fence(1, "0" * 32), 0, b"", tuple(committed), length)
    return kind(prefix, SamplingParams(**params), gamma, verification, LIMITS, source=source)


def alone(committed, *args, **kwargs):
    return a_draft(LookupDraft, partial(own_tokens, Lookups(2, 8, 1000)), committed, *args, **kwargs)


def composed(committed, *args, **kwargs):
    return a_draft(ComposedDraft, partial(matches, Lookups(2, 8, 1000)), committed, *args, **kwargs)


def by_model(committed):
    call = composed(committed)
    return Draft(call.prefix, call.params, call.gamma, call.verification, call.limits)


def certain(tokens):
    """Return the logits of a model that always says the token after the last one."""
    return torch.nn.functional.one_hot(torch.tensor([(tokens[-1] + 1) % VOCABULARY]), VOCABULARY).float() * 100


def run(*drafts, logits=certain):
    """Play the engine; returns each draft's end and what it asked to feed."""
    outcomes = {index: each.begin(list(each.prefix.tokens)) for index, each in enumerate(drafts)}
    sequences = [list(each.prefix.tokens) for each in drafts]
    feeds = [[] for _ in drafts]
    while running := [index for index, outcome in outcomes.items() if isinstance(outcome, Feed)]:
        for index in running:
            assert outcomes[index].rows == 1
            feeds[index].append(outcomes[index].tokens)
            sequences[index] += outcomes[index].tokens
        ready = [(drafts[index], logits(sequences[index])) for index in running]
        outcomes.update(zip(running, draw(ready), strict=True))
    return [(outcomes[index], feeds[index]) for index in range(len(drafts))]


def proposed(draft):
    ((done, _),) = run(draft)
    return done.result


def test_a_single_follower_is_certain_and_the_proposal_ends_where_nothing_is_known():
    proposal = proposed(alone((1, 2, 3, 4, 9, 8, 1, 2), gamma=4))
    assert proposal.draft_tokens == (3, 4, 9, 8)
    assert proposal.draft_distributions == tuple(SparseDistribution((token,), (1.0,)) for token in (3, 4, 9, 8))
    assert proposed(alone((1, 2, 3, 4, 1, 2, 9), gamma=4)).gamma == 0
    assert proposed(alone((1, 2, 3, 9, 9, 3, 4, 7, 1, 2), gamma=8)).draft_tokens == (3, 9, 9, 3, 4, 7, 1, 2)
    assert proposed(alone((1, 2, 3, 4, 7, 7, 2, 3), gamma=0)).gamma == 0


def test_steps_of_the_answer_are_used_where_nothing_matches():
    tokens = (7, 3, 8, 9, 4, 5, 4)  # 5 followed 4 in the answer; 8 and 9 after 3 are of the prompt
    assert proposed(alone(tokens, gamma=1, prompt_length=3)).draft_tokens == (5,)
    assert proposed(alone(tokens, gamma=1, prompt_length=6)).gamma == 0
    of_model = proposed(composed(tokens, gamma=1, prompt_length=3)).draft_distributions[0]
    assert len(of_model.token_ids) == LIMITS.support_size


@pytest.mark.parametrize("verification", [Verification.TOKEN, Verification.BLOCK])
@pytest.mark.parametrize("kind", [alone, composed])
def test_what_is_sent_is_what_was_drawn_from(kind, verification):
    seen = set()
    for seed in range(40):
        proposal = proposed(kind(VARIED, verification=verification, seed=seed))
        check_draws(proposal, VOCABULARY, verification, seed, len(VARIED))
        assert proposal.draft_distributions[0] == SparseDistribution((3, 4), (0.6666666865348816, 0.3333333432674408))
        seen.add(proposal.draft_tokens)
    assert {tokens[0] for tokens in seen} == {3, 4}


def test_another_draw_would_be_refused(monkeypatch):
    seeds = [seed for seed in range(20) if proposed(alone(VARIED, seed=seed)).draft_tokens[0] == 3]
    monkeypatch.setattr("draft_service.lookup_drafting.uniform", lambda *_: 0.99)
    for seed in seeds:
        proposal = proposed(alone(VARIED, seed=seed))
        with pytest.raises(InvalidProposal, match="not the one its draw gives"):
            check_draws(proposal, VOCABULARY, Verification.TOKEN, seed, len(VARIED))


def test_greedy_takes_the_likeliest_with_certainty():
    for verification in Verification:
        proposal = proposed(alone(VARIED, gamma=1, verification=verification, temperature=0.0))
        assert proposal.draft_tokens == (3,)
        assert proposal.draft_distributions in ((), (SparseDistribution((3,), (1.0,)),))


def test_coupled_takes_the_choice_under_the_sessions_noise_among_what_followed():
    found = set()
    for seed in range(40):
        proposal = proposed(alone(VARIED, gamma=1, verification=Verification.COUPLED, seed=seed))
        noise = gumbel_noise(seed, len(VARIED), VOCABULARY, torch.device("cpu"))
        q = torch.zeros(VOCABULARY, dtype=torch.float64)
        q[3], q[4] = 2 / 3, 1 / 3
        assert proposal.draft_tokens == ((q.log() + noise).argmax().item(),)
        assert proposal.draft_distributions == ()
        found.add(proposal.draft_tokens)
    assert len(found) == 2


def test_a_composed_draft_changes_hands_within_a_proposal_and_feeds_both_kinds_in_one_pass():
    tokens = (3, 4, 9, 0, 5, 6, 2, 8, 3, 4)
    ((done, feeds),) = run(composed(tokens, gamma=12, temperature=0.0))
    # 9 0 5 6 2 8 3 4 and again, each time the longest match
    assert done.result.draft_tokens == (9, 0, 5, 6, 2, 8, 3, 4, 9, 0, 5, 6)
    assert feeds == []
    ((done, feeds),) = run(composed((5, 6, 2, 2, 3, 4), gamma=6, temperature=0.0))
    assert done.result.draft_tokens == (5, 6, 2, 2, 3, 4)  # 5, 6: the model; then all that followed
    assert feeds == [[], [5]]
    ((done, feeds),) = run(composed((5, 6, 9, 3, 4), gamma=6, temperature=0.0))
    assert done.result.draft_tokens == (5, 6, 9, 3, 4, 5)
    assert feeds == [[], [5], [6, 9, 3, 4]]
    assert (done.keep, done.committed) == (5 + 5, 5)


def test_batches_mix_sessions_at_will():
    def kinds():
        return [
            composed((5, 6, 9, 3, 4), gamma=6),
            composed(VARIED, gamma=6, verification=Verification.COUPLED),
            by_model((4, 5)),
            composed((7,), gamma=2, temperature=0.0),
        ]

    def varied(tokens):
        return torch.randn(1, VOCABULARY, generator=torch.Generator().manual_seed(hash(tuple(tokens)) % 2**31))

    assert run(*kinds(), logits=varied) == [run(each, logits=varied)[0] for each in kinds()]


def test_rows_that_are_not_finite_are_guesses_here_too():
    ((done, _),) = run(composed((5, 6), gamma=3), logits=lambda tokens: torch.full((1, VOCABULARY), torch.nan))
    assert done.result.draft_tokens == (0, 0, 0)
    assert done.keep == 0


@pytest.mark.parametrize("kind", [alone, composed])
def test_limits_hold_as_for_any_draft(kind):
    with pytest.raises(InvalidParameter):
        kind((1,) * 41).begin([1] * 41)
    with pytest.raises(InvalidParameter):
        kind((1,), logit_bias={VOCABULARY: 1.0}).begin([1])
    assert proposed(kind((1, 2) * 19, gamma=16)).gamma == 3


def shared_tokens(shared, committed, prompt_length, **how):
    source = partial(own_and_shared_tokens, Lookups(2, 8, 1000), shared)
    return proposed(a_draft(LookupDraft, source, committed, gamma=2, prompt_length=prompt_length, **how)).draft_tokens


def test_shared_steps_come_from_answers_of_other_sessions():
    shared = SharedSteps()
    assert shared_tokens(shared, (1, 2, 7, 8, 9), 3, seed=1) == ()
    assert shared_tokens(shared, (5, 7), 2, seed=2) == (8, 9)
    assert shared_tokens(shared, (5, 1), 2, seed=2) == ()  # of a prompt


def test_a_round_that_others_of_its_seed_have_passed_uses_nothing_shared():
    shared = SharedSteps()
    shared_tokens(shared, (1, 7, 8, 9), 2, seed=1)
    for verification in (Verification.TOKEN, Verification.BLOCK):
        assert shared_tokens(shared, (1, 7), 2, seed=1, verification=verification) == ()
        assert shared_tokens(shared, (1, 2, 3, 7), 4, seed=1, verification=verification) == (8, 9)
        assert shared_tokens(shared, (1, 7), 2, seed=2, verification=verification) == (8, 9)
    assert shared_tokens(shared, (1, 7), 2, seed=1, verification=Verification.COUPLED) == (8, 9)
    assert shared_tokens(shared, (1, 7), 2, seed=1, temperature=0.0) == (8, 9)


def test_what_was_learnt_under_a_seed_is_not_learnt_again_and_all_is_forgotten_together():
    shared = SharedSteps(entries=3)
    for _ in range(3):
        shared.learn(1, [4, 5, 6], 1)
    assert (shared.after(4), shared.after(5), shared.after(6)) == ([5], [6], [])
    shared.learn(1, [4, 9, 9, 5], 1)
    assert (shared.after(4), shared.after(9)) == ([5], [5])
    assert not shared.open_to(1, 3)
    shared.learn(2, [8, 8], 1)
    assert shared.after(4) == shared.after(8) == []
    assert shared.open_to(1, 0)
