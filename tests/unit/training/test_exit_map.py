"""The exit map against a reference: least squares on an augmented system, and the α that chooses the penalty."""

import pytest
import torch

import training.exit_map
from specdec.model.loading import load_model
from tests.tiny_models import VOCABULARY, write_tiny_model
from training.answers import Answer
from training.early_exit import network_end
from training.exit_map import PENALTIES, NormalEquations, fit_exit_map

CPU = torch.device("cpu")
ANSWERS = [Answer(tuple((7 * seed + 11 * place) % 250 for place in range(20 + seed)), 3) for seed in range(12)]


@pytest.fixture
def data():
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(50, 8, generator=generator, dtype=torch.float64)
    return states, states @ torch.randn(8, 8, generator=generator, dtype=torch.float64) + 0.1 * states**2


@pytest.mark.parametrize("penalty", [1e-6, 1e-2, 1.0])
def test_ridge_is_least_squares_with_further_rows(data, penalty):
    states, wanted = data
    equations = NormalEquations(8, CPU)
    for part in range(0, 50, 16):
        equations.add(states[part : part + 16], wanted[part : part + 16])
    (found,) = equations.solved([penalty])
    further = (penalty * states.pow(2).sum() / 8).sqrt() * torch.eye(8, dtype=torch.float64)
    rows = torch.cat([wanted, torch.zeros_like(further)])
    expected = torch.linalg.lstsq(torch.cat([states, further]), rows).solution.T
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


def test_states_that_leave_a_direction_out_still_have_a_map(data):
    states, wanted = data
    equations = NormalEquations(8, CPU)
    equations.add(states * torch.tensor([1, 1, 1, 1, 1, 1, 1, 0]), wanted)
    (found,) = equations.solved([1e-6])
    assert found.isfinite().all()
    torch.testing.assert_close(found[:, 7], torch.zeros(8, dtype=torch.float64), rtol=0, atol=1e-9)


@torch.inference_mode()
def brute_force(end, layer, answers, token_ids, weight):
    states, last = end.states(layer, answers)
    p = torch.softmax(end.head(last)[:, : len(VOCABULARY)], -1)
    q = torch.softmax(states @ (end.head.weight[token_ids] @ weight).T, -1)
    return torch.minimum(p[:, token_ids], q).sum(-1).mean().item()


def test_the_penalty_is_the_one_of_the_highest_alpha(tmp_path):
    end = network_end(load_model(write_tiny_model(tmp_path, layers=3), "cpu", "float64"))
    tokens = torch.arange(0, 250, 2)
    equations = NormalEquations(32, CPU)
    equations.add(*end.states(2, ANSWERS[:8]))
    found = fit_exit_map(end, 2, ANSWERS[:8], ANSWERS[8:], tokens)
    scores = [brute_force(end, 2, ANSWERS[8:], tokens, weight) for weight in equations.solved(PENALTIES)]
    assert found.acceptance == pytest.approx(max(scores), abs=1e-6)
    assert found.penalty == PENALTIES[scores.index(max(scores))]
    assert max(scores) > min(scores) + 1e-4


def test_only_so_many_positions_choose(tmp_path, monkeypatch):
    end = network_end(load_model(write_tiny_model(tmp_path, layers=2), "cpu", "float64"))
    tokens = torch.arange(len(VOCABULARY))
    monkeypatch.setattr(training.exit_map, "SCORED", 17)
    found = fit_exit_map(end, 1, ANSWERS[:8], ANSWERS[8:], tokens)
    first = Answer(ANSWERS[8].token_ids[: 3 + 17], 3)
    assert found.acceptance == pytest.approx(brute_force(end, 1, [first], tokens, found.weight), abs=1e-6)
