"""The law of committed tokens equals the target's, by exact enumeration, under every option and with any gamma."""

import pytest

from specdec.parameters import Verification
from tests.statistical.cases import GAMMAS, OPTIONS, TEMPERATURES, Draft, draft_of, params_of, rows_of
from tests.statistical.enumeration import Rounds, distance, target_law
from tests.statistical.proposals import Drafting

LENGTH = 3
EXACT = 1e-9
WAYS = [Verification.TOKEN, Verification.BLOCK]
TARGET, DRAFT = 1, 2


def rounds_of(params, way, gamma, draft: Draft) -> Rounds:
    target = rows_of(TARGET, params)
    return Rounds(target, Drafting(draft, draft, gamma), way, target, params.stop_token_ids)


def error_of(rounds: Rounds) -> float:
    return distance(rounds.law(LENGTH), target_law(rounds.target, LENGTH, rounds.ends))


@pytest.mark.parametrize("gamma", GAMMAS)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_the_law_is_the_targets(temperature, option, way, gamma):
    params = params_of(temperature, option)
    assert error_of(rounds_of(params, way, GAMMAS[gamma], draft_of(DRAFT, params))) < EXACT


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("support_size", [1, 2])
def test_the_law_survives_a_cut_support(support_size, way):
    params = params_of("hot", "none")
    assert error_of(rounds_of(params, way, GAMMAS["4"], draft_of(DRAFT, params, support_size))) < EXACT


@pytest.mark.parametrize("way", WAYS)
def test_the_law_survives_a_draft_with_other_parameters(way):
    drafts = [draft_of(DRAFT, params_of(*other)) for other in (("greedy", "none"), ("cool", "top_p"), ("hot", "bias"))]
    for draft in drafts:
        assert error_of(rounds_of(params_of("hot", "min_p"), way, GAMMAS["mixed"], draft)) < EXACT


def test_block_never_keeps_fewer_tokens():
    params = params_of("hot", "none")
    more = 0
    for model in range(3, 13):
        kept = {
            way: sum(
                (len(tokens) - 1) * chance
                for tokens, chance in rounds_of(params, way, GAMMAS["4"], draft_of(model, params)).round(()).items()
            )
            for way in WAYS
        }
        assert kept[Verification.BLOCK] >= kept[Verification.TOKEN] - EXACT
        more += kept[Verification.BLOCK] > kept[Verification.TOKEN] + 1e-3
    assert more > 0
