"""The exit map: from the state after layer N to the target's last state, in closed form.

The state after the layer, s = m + D a, is divided by its root mean square r; the draft's logits are the target's head
times W s / r. Ridge regression of the target's last state on (m, a) / r gives W and W D together; D, the layer's down
projection, is the solution nearest to the target's own, and W is then fitted to the states that D makes. Everything
is computed from sums in float64, so that memory does not grow with the text. (The sums are taken with the r of the
target's own D; to iterate changes nothing that can be measured.) How strong the penalty must be, and how near D stays
to the target's own, is measured: the best are those whose draft the target would keep most of, on answers that are not
in the fit.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from training.answers import Answer
from training.early_exit import EarlyExit, ExitStates, batches
from training.soft_labels import plain_distributions

PENALTIES = (1e-4, 1e-3, 1e-2, 1e-1)  # shares of the features' mean square
PULLS = (0.03, 1.0, 1e6)  # of D towards the target's own, as shares of W's mean square; the last one leaves it there
SCORED = 1024  # positions that choose penalty and pull
ROWS = 64  # of them at a time: logits over the whole vocabulary need memory


@dataclass(frozen=True, slots=True)
class ExitMap:
    """A fitted map.

    Attributes:
        weight: [hidden, hidden] float64, W.
        projection: [hidden, intermediate] float64, D.
        penalty: the share of the features' mean square that they were fitted with.
        pull: the share of W's mean square with which D was drawn to the target's own.
    """

    weight: torch.Tensor
    projection: torch.Tensor
    penalty: float
    pull: float


class NormalEquations:
    """Sums over positions that the fit needs: of the features z = (m, a) / r and of the target's last state y."""

    def __init__(self, projection: torch.Tensor) -> None:
        """Start without data, with the target's own D, [hidden, intermediate] float64."""
        hidden, inner = projection.shape
        self._projection = projection
        self._squares = projection.new_zeros(hidden + inner, hidden + inner)  # Σ z zᵀ
        self._products = projection.new_zeros(hidden, hidden + inner)  # Σ y zᵀ

    def add(self, states: ExitStates) -> None:
        """Add positions."""
        middle, inner = states.middle.double(), states.inner.double()
        size = (middle + inner @ self._projection.T).pow(2).mean(dim=-1, keepdim=True).sqrt()
        features = torch.cat([middle, inner], dim=-1) / size
        self._squares += features.T @ features
        self._products += states.last.double().T @ features

    def solved(self, penalty: float, pull: float) -> ExitMap:
        """Return the map for a penalty and a pull, both above 0."""
        own = self._projection
        unit = torch.eye(own.shape[0], dtype=own.dtype, device=own.device)
        first, product = _ridge(self._squares, self._products, penalty).split(own.shape, dim=1)
        gram = first.T @ first
        change = torch.linalg.solve(gram + pull * gram.trace() / len(gram) * unit, first.T @ (product - first @ own))
        projection = own + change
        mixed = torch.cat([unit, projection], dim=1)  # from features to states
        weight = _ridge(mixed @ self._squares @ mixed.T, self._products @ mixed.T, penalty)
        return ExitMap(weight, projection, penalty, pull)


def _ridge(squares: torch.Tensor, products: torch.Tensor, penalty: float) -> torch.Tensor:
    """Return argmin over C of Σ |C z − y|² + λ |C|², from Σ z zᵀ and Σ y zᵀ; λ is a share of the mean square of z."""
    unit = torch.eye(len(squares), dtype=squares.dtype, device=squares.device)
    solution: torch.Tensor = torch.linalg.solve(squares + penalty * squares.trace() / len(squares) * unit, products.T)
    return solution.T


def fit_exit_map(
    leaving: EarlyExit, answers: Sequence[Answer], held_out: Sequence[Answer], token_ids: torch.Tensor
) -> ExitMap:
    """Fit the map and choose penalty and pull.

    Args:
        leaving: where the draft leaves the target.
        answers: to fit on, at least one.
        held_out: to choose on, at least one.
        token_ids: [K] int64, the tokens that the draft's head knows.
    """
    equations = NormalEquations(leaving.projection)
    for batch in batches(answers):
        equations.add(leaving.states(batch))
    maps = [equations.solved(penalty, pull) for penalty in PENALTIES for pull in PULLS]
    scores = acceptances(leaving, held_out, token_ids, maps)
    return maps[max(range(len(maps)), key=scores.__getitem__)]


@torch.inference_mode()
def acceptances(
    leaving: EarlyExit, answers: Sequence[Answer], token_ids: torch.Tensor, maps: Sequence[ExitMap]
) -> list[float]:
    """Return α of every map's draft on the answers' first SCORED positions."""
    head, size = leaving.end.head, leaving.end.model.vocabulary_size
    known, dtype = head.weight[token_ids].double(), head.weight.dtype
    readers = [((known @ one.weight).to(dtype), one.projection.to(dtype)) for one in maps]
    sums, positions = [0.0] * len(maps), 0
    for rows in _rows(leaving, answers):
        p = plain_distributions(head(rows.last)[:, :size].float())[:, token_ids]
        for index, (reader, projection) in enumerate(readers):
            state = leaving.end.plain_norm(rows.middle + rows.inner @ projection.T)
            q = plain_distributions((state @ reader.T).float())
            sums[index] += torch.minimum(p, q).double().sum().item()
        positions += len(p)
    return [total / positions for total in sums]


def _rows(leaving: EarlyExit, answers: Sequence[Answer]) -> Iterator[ExitStates]:
    """Yield the first SCORED positions, at most ROWS at a time."""
    left = SCORED
    for batch in batches(answers):
        states = leaving.states(batch)
        parts = (part[:left].split(ROWS) for part in (states.middle, states.inner, states.last))
        for middle, inner, last in zip(*parts, strict=True):
            yield ExitStates(middle, inner, last)
            left -= len(last)
        if not left:
            return
