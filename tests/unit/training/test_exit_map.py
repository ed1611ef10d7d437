"""The exit map against a reference: least squares on an augmented system, and the α that chooses the penalty."""

import itertools

import pytest
import torch

import training.exit_map
from specdec.model.loading import load_model
from tests.tiny_models import VOCABULARY, write_tiny_model
from training.answers import Answer
from training.early_exit import EarlyExit, ExitStates
from training.exit_map import PENALTIES, PULLS, NormalEquations, acceptances, fit_exit_map
from training.network_end import network_end

ANSWERS = [Answer(tuple((7 * seed + 11 * place) % 250 for place in range(20 + seed)), 3) for seed in range(12)]


def random(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def solved(states, projection, penalty, pull=0.03):
    equations = NormalEquations(projection)
    for part in range(0, len(states.last), 16):
        rows = slice(part, part + 16)
        equations.add(ExitStates(states.middle[rows], states.inner[rows], states.last[rows]))
    return equations.solved(penalty, pull)


def least_squares(features, wanted, penalty):
    """Ridge regression by further rows."""
    further = (penalty * features.pow(2).sum() / features.shape[1]).sqrt() * torch.eye(features.shape[1]).double()
    rows = torch.cat([wanted, further.new_zeros(features.shape[1], wanted.shape[1])])
    return torch.linalg.lstsq(torch.cat([features, further]), rows).solution.T


def root_mean_square(states):
    return states.pow(2).mean(-1, keepdim=True).sqrt()


@pytest.mark.parametrize("penalty", [1e-6, 1e-2, 1.0])
def test_without_a_projection_the_map_is_ridge_regression(penalty):
    middle = random(50, 8, seed=0)
    states = ExitStates(middle, middle[:, :0], middle @ random(8, 8, seed=1) + 0.1 * middle**2)
    expected = least_squares(middle / root_mean_square(middle), states.last, penalty)
    found = solved(states, torch.zeros(8, 0).double(), penalty)
    torch.testing.assert_close(found.weight, expected, rtol=1e-9, atol=1e-9)
    assert found.projection.shape == (8, 0)


def test_with_a_projection_both_are_what_the_formulas_say():
    middle, inner, own = random(80, 8, seed=0), random(80, 12, seed=1), random(8, 12, seed=2)
    states = ExitStates(middle, inner, random(80, 8, seed=3))
    size = root_mean_square(middle + inner @ own.T)
    joint = least_squares(torch.cat([middle, inner], 1) / size, states.last, 1e-2)
    first, product = joint[:, :8], joint[:, 8:]
    # argmin over D of |first D - product|² + pull |D - own|², by further rows
    pull = (0.03 * first.pow(2).sum() / 8).sqrt() * torch.eye(8).double()
    projection = torch.linalg.lstsq(torch.cat([first, pull]), torch.cat([product, pull @ own])).solution
    weight = least_squares((middle + inner @ projection.T) / size, states.last, 1e-2)
    found = solved(states, own, 1e-2)
    torch.testing.assert_close(found.projection, projection, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(found.weight, weight, rtol=1e-2, atol=1e-2)


def test_a_projection_that_is_right_already_stays():
    middle, inner, own = random(80, 8, seed=0), random(80, 12, seed=1), random(8, 12, seed=2)
    state = middle + inner @ own.T
    right = random(8, 8, seed=3)
    found = solved(ExitStates(middle, inner, state / root_mean_square(state) @ right.T), own, 1e-12)
    torch.testing.assert_close(found.projection, own, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(found.weight, right, rtol=1e-6, atol=1e-6)


def test_a_strong_pull_leaves_the_targets_own_projection():
    middle, inner, own = random(80, 8, seed=0), random(80, 12, seed=1), random(8, 12, seed=2)
    state = middle + inner @ own.T
    states = ExitStates(middle, inner, random(80, 8, seed=3))
    found = solved(states, own, 1e-2, max(PULLS))
    torch.testing.assert_close(found.projection, own, rtol=1e-4, atol=1e-4)
    expected = least_squares(state / root_mean_square(state), states.last, 1e-2)
    torch.testing.assert_close(found.weight, expected, rtol=1e-2, atol=1e-2)


def test_directions_that_the_states_leave_out_do_no_harm():
    middle = random(50, 8, seed=0) * torch.tensor([1, 1, 1, 1, 1, 1, 1, 0])
    found = solved(ExitStates(middle, middle[:, :0], random(50, 8, seed=1)), torch.zeros(8, 0).double(), 1e-6)
    assert found.weight.isfinite().all()
    torch.testing.assert_close(found.weight[:, 7], torch.zeros(8).double(), rtol=0, atol=1e-9)


@pytest.fixture(scope="module")
def leaving(tmp_path_factory):
    return EarlyExit(network_end(load_model(write_tiny_model(tmp_path_factory.mktemp("tiny"), layers=3), "cpu")), 2)


@torch.inference_mode()
def brute_force(leaving, answers, token_ids, exit_map):
    """α of the draft itself, run as a network of its own."""
    network = leaving.draft(leaving.end.head.weight.double() @ exit_map.weight, exit_map.projection)
    shares = []
    for answer in answers:
        tokens, first = torch.tensor([answer.token_ids[:-1]]), answer.prompt_length - 1
        p = torch.softmax(leaving.end.head(leaving.states([answer]).last)[:, : len(VOCABULARY)], -1)
        q = torch.softmax(network(tokens).logits[0, first:, token_ids], -1)
        shares.append(torch.minimum(p[:, token_ids], q).sum(-1))
    return torch.cat(shares).mean().item()


def test_penalty_and_pull_are_those_of_the_highest_alpha(leaving):
    tokens = torch.arange(0, 250, 2)
    equations = NormalEquations(leaving.projection)
    equations.add(leaving.states(ANSWERS[:8]))
    grid = list(itertools.product(PENALTIES, PULLS))
    scores = [brute_force(leaving, ANSWERS[8:], tokens, equations.solved(*choice)) for choice in grid]
    assert max(scores) > min(scores) + 1e-4
    found = fit_exit_map(leaving, ANSWERS[:8], ANSWERS[8:], tokens)
    assert (found.penalty, found.pull) == grid[scores.index(max(scores))]
    assert acceptances(leaving, ANSWERS[8:], tokens, [found]) == [pytest.approx(max(scores), abs=1e-5)]


def test_only_so_many_positions_choose(leaving, monkeypatch):
    tokens = torch.arange(len(VOCABULARY))
    monkeypatch.setattr(training.exit_map, "SCORED", 17)
    found = fit_exit_map(leaving, ANSWERS[:8], ANSWERS[8:], tokens)
    first = Answer(ANSWERS[8].token_ids[: 3 + 17], 3)
    expected = brute_force(leaving, [first], tokens, found)
    assert acceptances(leaving, ANSWERS[8:], tokens, [found]) == [pytest.approx(expected, abs=1e-5)]
