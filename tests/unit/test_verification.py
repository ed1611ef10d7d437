"""Verdicts of single rounds, and the proposals that are refused."""

import pytest
import torch

from specdec.draws import Purpose, gumbel_noise, uniform
from specdec.errors import InvalidProposal
from specdec.parameters import Verification
from specdec.proposal import Proposal, SparseDistribution
from specdec.sampling import coupled_choice
from specdec.verification import (
    block_acceptance,
    block_weights,
    check_draws,
    draft_rows,
    normalised,
    residual_distribution,
    verify,
)

SEED, BASE = 11, 20
WAYS = list(Verification)


def one_hot(token, vocabulary=5):
    return torch.eye(vocabulary)[token]


def certain(*tokens):
    """A greedy draft's proposal."""
    return Proposal(tokens, tuple(SparseDistribution((token,), (1.0,)) for token in tokens))


def decided(proposal, target_probs, way):
    if way is Verification.COUPLED:
        proposal = Proposal(proposal.draft_tokens)
    verdict = verify(proposal, target_probs, way, SEED, BASE)
    return verdict.accept_index.item(), verdict.next_token.item(), verdict.residual_zero.item()


@pytest.mark.parametrize("way", WAYS)
def test_an_empty_proposal_is_plain_decoding(way):
    assert decided(Proposal(), one_hot([3]), way) == (0, 3, False)


@pytest.mark.parametrize("way", WAYS)
def test_everything_stands_when_the_target_agrees(way):
    assert decided(certain(1, 2, 3), one_hot([1, 2, 3, 4]), way) == (3, 4, False)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("wrong", [0, 1, 2])
def test_the_first_disagreement_ends_the_round(way, wrong):
    tokens = [1, 2, 3]
    tokens[wrong] = 0
    assert decided(certain(*tokens), one_hot([1, 2, 3, 4]), way) == (wrong, wrong + 1, False)


@pytest.mark.parametrize("way", WAYS)
def test_a_repeat_gives_the_same_verdict(way):
    target_probs = torch.softmax(torch.randn(4, 5, generator=torch.Generator().manual_seed(0)), dim=-1)
    first = decided(certain(1, 2, 3), target_probs, way)
    assert all(decided(certain(1, 2, 3), target_probs, way) == first for _ in range(3))


@pytest.mark.parametrize(("way", "decides"), [(Verification.TOKEN, 1), (Verification.BLOCK, 2)])
def test_a_draw_above_what_the_target_gives_refuses(way, decides):
    """TOKEN asks the draw of the token's own position; BLOCK, where later ones are certain, that of the last."""
    draw = uniform(SEED, BASE, BASE + decides, Purpose.ACCEPT)
    kept = []
    for mass in (draw + 1e-6, draw - 1e-6):
        target_probs = one_hot([1, 2, 3, 4])
        target_probs[1] = torch.tensor([1 - mass, 0.0, mass, 0.0, 0.0])
        kept.append(decided(certain(1, 2, 3), target_probs, way)[0])
    assert kept == [3, 1]


@pytest.mark.parametrize("way", [Verification.TOKEN, Verification.BLOCK])
def test_the_next_token_is_drawn_with_the_draw_of_its_position(way):
    for wrong in range(4):
        draw = uniform(SEED, BASE, BASE + wrong, Purpose.NEXT)
        for mass, expected in ((draw + 1e-6, 0), (draw - 1e-6, 4)):
            target_probs = one_hot([1, 2, 3, 4])
            target_probs[wrong] = torch.tensor([mass, 0.0, 0.0, 0.0, 1 - mass])
            assert decided(certain(1, 2, 3), target_probs, way)[:2] == (wrong, expected)


def test_coupled_commits_the_targets_own_choices():
    target_probs = torch.softmax(torch.randn(4, 5, generator=torch.Generator().manual_seed(1)), dim=-1)
    noise = torch.stack([gumbel_noise(SEED, BASE + i, 5, torch.device("cpu")) for i in range(4)])
    own = coupled_choice(target_probs, noise).tolist()
    assert decided(certain(*own[:3]), target_probs, Verification.COUPLED)[:2] == (3, own[3])
    assert decided(certain(own[0], (own[1] + 1) % 5), target_probs[:3], Verification.COUPLED)[:2] == (1, own[1])


def test_a_residual_without_mass_falls_back_to_the_target_and_says_so():
    p = normalised(torch.tensor([[0.5, 0.5], [0.5, 0.5]]))
    draft = draft_rows(Proposal((0,), (SparseDistribution((0, 1), (0.5, 0.5)),)), p.device)
    residual, empty = residual_distribution(p, draft, torch.ones(2, dtype=torch.float64), torch.tensor(0))
    assert empty
    assert residual.tolist() == [0.5, 0.5]


def test_block_weights_carry_what_earlier_tokens_lost():
    p = normalised(torch.tensor([[0.2, 0.8], [0.9, 0.1], [0.5, 0.5]]))
    draft = draft_rows(Proposal((0, 0), (SparseDistribution((0, 1), (0.4, 0.6)),) * 2), p.device)
    weights = block_weights(p, draft)
    assert weights.tolist() == pytest.approx([1.0, 0.5, 1.0])  # 0.2/0.4, then min(1, 0.5 · 0.9/0.4)
    # At index 1: r = max(0, 0.5·0.9 − 0.4) + max(0, 0.5·0.1 − 0.6) = 0.05.
    assert block_acceptance(p, draft, weights).tolist() == pytest.approx([0.05 / 0.55, 1.0])


def drawn_proposal(distribution, gamma=2):
    """Draw as a draft does, entry by entry."""
    tokens = []
    for index in range(gamma):
        threshold, reached = uniform(SEED, BASE, BASE + index, Purpose.DRAFT) * sum(distribution.probabilities), 0.0
        for token, probability in zip(distribution.token_ids, distribution.probabilities, strict=True):
            reached += probability
            if threshold < reached:
                tokens.append(token)
                break
    return Proposal(tuple(tokens), (distribution,) * gamma)


SUPPORT = SparseDistribution((4, 2, 0), (0.5, 0.3, 0.2))


def check(proposal, way=Verification.TOKEN):
    check_draws(proposal, 5, way, SEED, BASE)


def test_an_honest_proposal_is_taken():
    check(drawn_proposal(SUPPORT))
    check(certain(1, 4))
    check(Proposal())


@pytest.mark.parametrize("total", [0.5, 2.0])
def test_what_probabilities_do_not_sum_to_1_by_is_divided_out(total):
    other = SparseDistribution(SUPPORT.token_ids, tuple(total * value for value in SUPPORT.probabilities))
    honest = drawn_proposal(other)
    assert honest.draft_tokens == drawn_proposal(SUPPORT).draft_tokens
    check(honest)
    rows, usual = (draft_rows(drawn_proposal(each), torch.device("cpu")) for each in (other, SUPPORT))
    assert torch.allclose(rows.probabilities, usual.probabilities, rtol=1e-12)


def test_a_token_its_draw_does_not_give_is_refused():
    honest = drawn_proposal(SUPPORT)
    for other in set(SUPPORT.token_ids) - {honest.draft_tokens[1]}:
        with pytest.raises(InvalidProposal, match="not the one its draw gives") as caught:
            check(Proposal((honest.draft_tokens[0], other), honest.draft_distributions))
        assert caught.value.field == "proposal.draft_distributions[1]"


def test_a_token_outside_its_support_is_refused():
    with pytest.raises(InvalidProposal, match="outside its distribution"):
        check(Proposal((1,), (SUPPORT,)))


@pytest.mark.parametrize("way", WAYS)
def test_ids_beyond_the_real_vocabulary_are_refused(way):
    with pytest.raises(InvalidProposal, match="not below 5"):
        check(certain(5) if way is not Verification.COUPLED else Proposal((5,)), way)
    if way is not Verification.COUPLED:
        with pytest.raises(InvalidProposal, match="not below 5"):
            check(Proposal((0,), (SparseDistribution((0, 5), (0.5, 0.5)),)), way)


def test_a_draw_on_the_edge_of_an_interval_is_taken_from_either_side():
    u = uniform(SEED, BASE, BASE, Purpose.DRAFT)
    edge = SparseDistribution((1, 2), (u, 1.0 - u))
    check(Proposal((1,), (edge,)))
    check(Proposal((2,), (edge,)))
