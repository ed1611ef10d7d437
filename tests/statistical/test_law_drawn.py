"""Sessions of several rounds with real draws have the target's law; draws keyed by position alone do not in BLOCK."""

from collections import Counter

import pytest

from draft_service import drafting
from specdec import draws, verification
from specdec.parameters import Verification
from tests.statistical.cases import GAMMAS, params_of, rows_of
from tests.statistical.chi_square import FAILS_ABOVE, z_score
from tests.statistical.enumeration import target_law
from tests.statistical.sessions import Sessions

LENGTH, SESSIONS = 4, 1500
TARGET, DRAFT = 2, 19


def z_of(way, temperature="cool", option="none", gamma="4", sessions=SESSIONS):
    params = params_of(temperature, option)
    answers = Sessions(TARGET, DRAFT, params, way, GAMMAS[gamma]).answers(range(sessions), LENGTH)
    return z_score(Counter(answers), target_law(rows_of(TARGET, params), LENGTH, params.stop_token_ids))


@pytest.mark.parametrize(
    ("way", "temperature", "option", "gamma"),
    [
        (Verification.TOKEN, "hot", "none", "4"),
        (Verification.TOKEN, "cool", "all", "mixed"),
        (Verification.BLOCK, "cool", "none", "4"),
        (Verification.BLOCK, "hot", "penalties", "mixed"),
        (Verification.COUPLED, "hot", "top_p", "mixed"),
    ],
)
def test_the_law_is_the_targets(way, temperature, option, gamma):
    assert z_of(way, temperature, option, gamma) < FAILS_ABOVE


@pytest.fixture
def keyed_by_position_alone(monkeypatch):
    def uniform(seed, base_length, position, purpose):
        return draws.uniform(seed, 0, position, purpose)

    monkeypatch.setattr(drafting, "uniform", uniform)
    monkeypatch.setattr(verification, "uniform", uniform)


@pytest.mark.usefixtures("keyed_by_position_alone")
def test_control_block_with_draws_keyed_by_position_alone():
    assert z_of(Verification.BLOCK) > 2 * FAILS_ABOVE


@pytest.mark.usefixtures("keyed_by_position_alone")
def test_token_does_not_need_the_round_in_the_key():
    assert z_of(Verification.TOKEN) < FAILS_ABOVE


@pytest.mark.long
@pytest.mark.parametrize("way", Verification)
@pytest.mark.parametrize("gamma", GAMMAS)
@pytest.mark.parametrize("option", ["none", "top_p", "penalties", "all"])
def test_the_law_is_the_targets_in_large_samples(option, gamma, way):
    assert z_of(way, "hot", option, gamma, sessions=10_000) < FAILS_ABOVE
