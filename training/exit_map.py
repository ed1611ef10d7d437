"""The exit map: from the state after layer N to the target's last state, by ridge regression in closed form.

W = argmin Σ |W x − y|² + λ |W|², accumulated as normal equations in float64, so that the text may be of any length; x
is the state after layer N divided by its root mean square, y the target's last one. The draft's head is the target's
times W. How strong the penalty must be is measured: it is the one whose draft the target would keep most of, on answers
that are not in the fit.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from specdec.sampling import distributions
from training.answers import PLAIN, Answer
from training.early_exit import NetworkEnd, batches

PENALTIES = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1)  # shares of the states' mean square
SCORED = 1024  # positions that choose the penalty
ROWS = 64  # of them at a time: logits over the whole vocabulary need memory


@dataclass(frozen=True, slots=True)
class ExitMap:
    """A fitted map.

    Attributes:
        weight: W, [hidden, hidden] float64.
        penalty: the chosen one, as a share of the states' mean square.
        acceptance: α on the positions that chose it.
    """

    weight: torch.Tensor
    penalty: float
    acceptance: float


class NormalEquations:
    """Sums that a least-squares fit needs of its data, in float64: memory does not grow with the text."""

    def __init__(self, hidden: int, device: torch.device) -> None:
        """Start without data."""
        self._squares = torch.zeros(hidden, hidden, dtype=torch.float64, device=device)  # Σ x xᵀ
        self._products = torch.zeros(hidden, hidden, dtype=torch.float64, device=device)  # Σ y xᵀ

    def add(self, states: torch.Tensor, wanted: torch.Tensor) -> None:
        """Add data: states (x) and what they are to be mapped to (y), [n, hidden] each."""
        x, y = states.double(), wanted.double()
        self._squares += x.T @ x
        self._products += y.T @ x

    def solved(self, penalties: Sequence[float]) -> Iterator[torch.Tensor]:
        """Yield W, [hidden, hidden] float64, for every penalty, a share of the states' mean square above 0."""
        values, vectors = torch.linalg.eigh(self._squares)
        rotated = self._products @ vectors
        for penalty in penalties:
            yield (rotated / (values.clamp(min=0) + penalty * values.mean())) @ vectors.T


def fit_exit_map(
    end: NetworkEnd, layer: int, answers: Sequence[Answer], held_out: Sequence[Answer], token_ids: torch.Tensor
) -> ExitMap:
    """Fit the map and choose its penalty.

    Args:
        end: the target's.
        layer: the layer to leave after.
        answers: to fit on, at least one.
        held_out: to choose on, at least one.
        token_ids: [K] int64, the tokens that the draft's head knows.
    """
    equations = NormalEquations(end.head.weight.shape[1], end.model.device)
    for batch in batches(answers):
        equations.add(*end.states(layer, batch))
    maps = list(equations.solved(PENALTIES))
    scores = _acceptances(end, layer, held_out, token_ids, maps)
    best = max(range(len(maps)), key=scores.__getitem__)
    return ExitMap(maps[best], PENALTIES[best], scores[best])


@torch.inference_mode()
def _acceptances(
    end: NetworkEnd, layer: int, answers: Sequence[Answer], token_ids: torch.Tensor, maps: Sequence[torch.Tensor]
) -> list[float]:
    """Return α of every map's draft on the answers' first SCORED positions."""
    size = end.model.vocabulary_size
    known = end.head.weight[token_ids]
    sums, positions = [0.0] * len(maps), 0
    for states, last in _positions(end, layer, answers):
        p = _plain_distributions(end.head(last)[:, :size])[:, token_ids]
        for index, weight in enumerate(maps):
            q = _plain_distributions(states @ (known.double() @ weight).to(states.dtype).T)
            sums[index] += torch.minimum(p, q).double().sum().item()
        positions += len(states)
    return [total / positions for total in sums]


def _positions(end: NetworkEnd, layer: int, answers: Sequence[Answer]) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield states and last states of the first SCORED positions, at most ROWS at a time."""
    left = SCORED
    for batch in batches(answers):
        states, last = (part[:left] for part in end.states(layer, batch))
        yield from zip(states.split(ROWS), last.split(ROWS), strict=True)
        left -= len(states)
        if not left:
            return


def _plain_distributions(logits: torch.Tensor) -> torch.Tensor:
    return distributions(logits.float(), [PLAIN] * len(logits))
