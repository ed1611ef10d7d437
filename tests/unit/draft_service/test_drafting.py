"""Draft tokens are drawn from exactly what is sent, for any mixture of sessions in a batch."""

import pytest
import torch

from draft_service.drafting import Draft, DraftLimits, draw
from specdec.draws import gumbel_noise
from specdec.errors import InvalidParameter
from specdec.fence import Fence
from specdec.model.work import Done, Feed
from specdec.parameters import SamplingParams, Verification
from specdec.prefix import CommittedPrefix
from specdec.proposal import SparseDistribution
from specdec.sampling import coupled_choice, distributions
from specdec.verification import check_draws
from tests.device_reads import DeviceReads

VOCABULARY = 12
LIMITS = DraftLimits(VOCABULARY, context_length=10, support_size=4, end_token_ids=(11,))


def draft(gamma=3, verification=Verification.TOKEN, committed=(1, 2, 3), limits=LIMITS, **params):
    params = {"temperature": 1.0, "seed": 5} | params
    prefix = CommittedPrefix("s", Fence(1, "0" * 32), 0, b"", committed, 1)
    return Draft(prefix, SamplingParams(**params), gamma, verification, limits)


def logits_after(tokens):
    generator = torch.Generator().manual_seed(hash(tuple(tokens)) % 2**31)
    return torch.randn(1, VOCABULARY, generator=generator) * 2


def run(*drafts):
    """Play the engine: feed, draw, until every draft is done."""
    sequences = {id(each): list(each.prefix.tokens) for each in drafts}
    running, done = list(drafts), {}
    for each in drafts:
        assert each.begin(list(each.prefix.tokens)) == Feed([], 1)
    while running:
        outcomes = draw([(each, logits_after(sequences[id(each)])) for each in running])
        for each, outcome in zip(list(running), outcomes, strict=True):
            if isinstance(outcome, Feed):
                assert outcome.rows == 1
                sequences[id(each)] += outcome.tokens
            else:
                done[id(each)] = outcome
                running.remove(each)
    return [done[id(each)] for each in drafts]


@pytest.mark.parametrize("verification", [Verification.TOKEN, Verification.BLOCK])
@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.3])
def test_what_is_sent_is_what_was_drawn_from(temperature, verification):
    for seed in range(20):
        (done,) = run(draft(verification=verification, temperature=temperature, seed=seed))
        proposal = done.result
        assert proposal.gamma == len(proposal.draft_distributions) == 3
        check_draws(proposal, VOCABULARY, verification, seed, 3)
        for distribution in proposal.draft_distributions:
            assert len(distribution.token_ids) == (1 if temperature == 0 else LIMITS.support_size)
            assert sum(distribution.probabilities) == pytest.approx(1.0, abs=1e-6)
            assert [torch.tensor(value).item() for value in distribution.probabilities] == list(
                distribution.probabilities
            )


def test_a_greedy_draft_sends_one_entry_of_probability_one():
    (done,) = run(draft(temperature=0.0))
    assert [(q.token_ids, q.probabilities) for q in done.result.draft_distributions] == [
        ((token,), (1.0,)) for token in done.result.draft_tokens
    ]


def test_coupled_takes_the_choice_under_the_sessions_noise_from_the_whole_vocabulary():
    each = draft(verification=Verification.COUPLED, gamma=1)
    (done,) = run(each)
    p = distributions(logits_after((1, 2, 3)), [draft().row])
    noise = gumbel_noise(5, 3, VOCABULARY, p.device)[None]
    assert done.result.draft_tokens == (coupled_choice(p, noise).item(),)
    assert done.result.draft_distributions == ()


def test_a_batch_of_all_kinds_gives_everyone_what_it_would_get_alone():
    def kinds():
        return [
            draft(seed=1),
            draft(seed=2, verification=Verification.COUPLED, gamma=2),
            draft(seed=3, temperature=0.0, gamma=4, committed=(4,)),
            draft(seed=4, top_k=2, repetition_penalty=1.5, gamma=1),
            draft(seed=5, gamma=0),
        ]

    alone = [run(each)[0] for each in kinds()]
    assert run(*kinds()) == alone


def test_penalties_count_the_draft_tokens_before():
    free = run(draft(temperature=0.0, gamma=4, limits=LIMITS))[0].result.draft_tokens
    pushed = run(draft(temperature=0.0, gamma=4, frequency_penalty=2.0, presence_penalty=2.0))[0].result.draft_tokens
    assert free != pushed


def test_the_last_draft_token_is_not_kept_in_the_cache():
    (done,) = run(draft(gamma=3))
    assert (done.keep, done.committed) == (3 + 2, 3)


def test_gamma_zero_only_feeds_the_cache():
    (done,) = run(draft(gamma=0))
    assert done == Done(done.result, keep=3, committed=3)
    assert done.result.gamma == 0


def test_a_proposal_ends_where_the_context_does():
    (done,) = run(draft(gamma=8, committed=tuple(range(9))))
    assert done.result.gamma == 2
    assert done.keep == 10


def test_a_session_beyond_the_context_is_refused():
    with pytest.raises(InvalidParameter) as caught:
        draft(committed=tuple(range(11))).begin(list(range(11)))
    assert caught.value.field == "prefix.tokens"


def test_ids_beyond_the_vocabulary_are_refused_by_name():
    with pytest.raises(InvalidParameter) as caught:
        draft(logit_bias={VOCABULARY: 1.0}).begin([1, 2, 3])
    assert caught.value.field == "sampling_params.logit_bias"


@pytest.mark.parametrize("verification", list(Verification))
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_rows_that_are_not_finite_are_certain_guesses_and_their_cache_is_not_kept(temperature, verification):
    broken, healthy = (draft(2, verification, temperature=temperature) for _ in range(2))
    for each in (broken, healthy):
        each.begin([1, 2, 3])
    rows = logits_after((1, 2, 3))
    guessed, _ = draw([(broken, torch.full_like(rows, torch.nan)), (healthy, rows)])
    assert guessed == Feed([0], 1)
    done, fine = draw([(broken, rows), (healthy, rows)])
    assert done.result.gamma == 2
    assert done.result.draft_tokens[0] == 0
    if verification is not Verification.COUPLED:
        assert done.result.draft_distributions[0] == SparseDistribution((0,), (1.0,))
    check_draws(done.result, VOCABULARY, verification, 5, 3)
    assert (done.keep, fine.keep) == (0, 4)


def test_a_batch_is_drawn_without_waiting_for_the_device_before_its_one_copy():
    drafts = [
        draft(top_k=5, top_p=0.9, min_p=0.1, repetition_penalty=1.2, frequency_penalty=0.1, min_new_tokens=9),
        draft(verification=Verification.COUPLED),
        draft(temperature=0.0),
    ]
    for each in drafts:
        each.begin([1, 2, 3])
    with DeviceReads() as reads:
        draw([(each, logits_after((1, 2, 3))) for each in drafts])
    assert reads.found == []
