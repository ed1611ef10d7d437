"""COUPLED commits what plain decoding with the session's noise would, whatever the draft; and the noise is sound."""

from collections import Counter

import pytest
import torch

from specdec.draws import gumbel_noise
from specdec.parameters import Verification
from specdec.sampling import coupled_choice
from specdec.verification import normalised
from tests.statistical.cases import GAMMAS, OPTIONS, TEMPERATURES, VOCABULARY, Context, params_of, rows_of
from tests.statistical.chi_square import FAILS_ABOVE, z_score
from tests.statistical.enumeration import CPU, target_law
from tests.statistical.sessions import Sessions

LENGTH, SEEDS = 8, range(12)
DRAWS = 8_000
TARGET, DRAFTS = 1, (1, 2, 3)
P = torch.tensor([0.5, 0.07, 0.1, 0.33])
Q = torch.tensor([0.25, 0.04, 0.7, 0.01])
LAW = {(token,): mass for token, mass in enumerate(normalised(P[None])[0].tolist())}


def plain_answer(seed: int, params) -> Context:
    """Decode without rounds: each token is the target's choice under the noise of its position."""
    rows = rows_of(TARGET, params)
    answer: Context = ()
    while len(answer) < LENGTH and not set(answer) & set(params.stop_token_ids):
        noise = gumbel_noise(seed, 1 + len(answer), VOCABULARY, CPU)  # after a prompt of one token
        answer += (coupled_choice(rows(answer)[None], noise[None]).item(),)
    return answer


def odd(proposal) -> bool:
    """Say that a proposal is used by what it says: harmless here."""
    return sum(proposal.draft_tokens) % 2 == 1


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_an_answer_depends_on_target_and_seed_alone(temperature, option):
    params = params_of(temperature, option)
    expected = [plain_answer(seed, params) for seed in SEEDS]
    for draft in DRAFTS:
        for gamma in GAMMAS.values():
            sessions = Sessions(TARGET, draft, params, Verification.COUPLED, gamma, support_size=2)
            assert sessions.answers(SEEDS, LENGTH) == expected
    dropping = Sessions(TARGET, 2, params, Verification.COUPLED, GAMMAS["4"], arrives=odd)
    assert dropping.answers(SEEDS, LENGTH) == expected


def test_control_answers_depend_on_the_seed():
    answers = Sessions(TARGET, 2, params_of("hot", "none"), Verification.COUPLED, GAMMAS["4"]).answers(SEEDS, LENGTH)
    assert len(set(answers)) > len(SEEDS) // 2


@pytest.mark.parametrize("way", [Verification.TOKEN, Verification.BLOCK])
def test_control_token_and_block_depend_on_the_draft(way):
    params = params_of("hot", "none")
    answers = [Sessions(TARGET, draft, params, way, GAMMAS["4"]).answers(SEEDS, LENGTH) for draft in (2, 3)]
    assert answers[0] != answers[1]


def test_a_greedy_answer_is_the_same_in_every_way():
    params = params_of("greedy", "penalties")
    ways = [Sessions(TARGET, 2, params, way, GAMMAS["mixed"]).answers(SEEDS, LENGTH) for way in Verification]
    assert ways[0] == ways[1] == ways[2]
    assert set(ways[0]) == set(target_law(rows_of(TARGET, params), LENGTH))


def choices(noises: list[torch.Tensor], law: torch.Tensor = P) -> torch.Tensor:
    return coupled_choice(law.expand(len(noises), -1), torch.stack(noises))


def noise_of(seed: int, position: int) -> torch.Tensor:
    return gumbel_noise(seed, position, len(P), CPU)


def test_choices_have_the_law_over_seeds():
    chosen = choices([noise_of(seed, 9) for seed in range(DRAWS)])
    assert z_score(Counter(zip(chosen.tolist(), strict=True)), LAW) < FAILS_ABOVE


def z_of_neighbours(position_of) -> float:
    """Return how far pairs of tokens at two following positions are from independent ones with the law."""
    chosen = choices([noise_of(4, position_of(index)) for index in range(DRAWS)]).tolist()
    law = {one + other: LAW[one] * LAW[other] for one in LAW for other in LAW}
    return z_score(Counter(zip(chosen[::2], chosen[1::2], strict=True)), law)


def test_choices_have_the_law_over_positions_and_neighbours_are_independent():
    assert z_of_neighbours(lambda index: index) < FAILS_ABOVE


def test_control_noise_of_a_position_used_twice():
    assert z_of_neighbours(lambda index: index // 2) > FAILS_ABOVE


def first_tokens_by_token_verification(noises: list[torch.Tensor], others: list[torch.Tensor]) -> torch.Tensor:
    """Draw drafts with noise, keep each with probability min(1, p / q), else draw from max(0, p - q) with noise."""
    drafts = choices(noises, Q)
    coins = torch.rand(DRAWS, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    kept = coins < (P / Q)[drafts]
    return torch.where(kept, drafts, choices(others, (P - Q).clamp(min=0)))


def test_control_one_noise_for_draft_and_correction():
    noises, fresh = ([noise_of(seed, position) for seed in range(DRAWS)] for position in (3, 4))
    z_scores = [
        z_score(Counter(zip(first_tokens_by_token_verification(noises, others).tolist(), strict=True)), LAW)
        for others in (fresh, noises)
    ]
    assert z_scores[0] < FAILS_ABOVE < z_scores[1]
