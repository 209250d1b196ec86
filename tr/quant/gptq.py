"""GPTQ: inputs of a matrix are rounded one after another, each one's error carried to the rest.

With H = sum x x^T over calibration inputs and U the upper Cholesky factor of (H + damping)^-1, the
error e of input i moves every later input j by -e U[i, j] / U[i, i]: what minimises the error of
the layer's output. A group's grid is chosen when its turn comes, from the weights as they then are.
Source: GPTQ (arXiv 2210.17323); the order of inputs as in group-aware reordering.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import torch
from torch import Tensor


class Grid(Protocol):
    """Levels of one group of inputs, by row."""

    def codes(self, w: Tensor) -> Tensor:
        """The nearest levels to w [n, c]."""
        ...

    def values(self, codes: Tensor) -> Tensor:
        """Their numbers [n, c] fp32, as the weight will be read."""
        ...


G = TypeVar("G", bound=Grid)
#: the grid of a group: (its number, weights [n, group], importance of its inputs [group])
Choose = Callable[[int, Tensor, Tensor], G]


@dataclass(frozen=True)
class Rounded(Generic[G]):
    """codes [n, k] fp32 and one grid for each group, in the order of the inputs."""

    codes: Tensor
    grids: list[G]

    @property
    def values(self) -> Tensor:
        """The weights [n, k] fp32."""
        parts = self.codes.chunk(len(self.grids), 1)
        return torch.cat([g.values(c) for g, c in zip(self.grids, parts, strict=True)], 1)


def damped(h: Tensor, damp: float) -> Tensor:
    """H fp64 with `damp` of its mean diagonal added to it; an input that never came gets 1,
    and so is rounded to nearest."""
    h = h.double()
    diagonal = h.diagonal()
    dead = diagonal == 0
    h = h + torch.diag(torch.where(dead, 1.0, damp * diagonal.mean()))
    if not h.isfinite().all():
        raise ValueError("gptq: the calibration inputs hold infinite or missing numbers")
    return h


def order_of(h: Tensor, group: int) -> Tensor:
    """A permutation of the inputs [k] by decreasing diag H that keeps groups whole.

    Groups by the mean of theirs; ties in the inputs' own order.
    """
    diagonal = h.diagonal().unflatten(0, (-1, group))
    inner = diagonal.argsort(dim=1, descending=True, stable=True)
    outer = diagonal.mean(1).argsort(dim=0, descending=True, stable=True)
    start = torch.arange(0, h.shape[0], group, device=h.device)
    return (inner + start[:, None])[outer].flatten()


def gptq(
    weight: Tensor, h: Tensor, group: int, choose: Choose[G], damp: float, ordered: bool
) -> Rounded[G]:
    """weight [n, k] and H [k, k] -> codes and grids by groups of inputs."""
    n, k = weight.shape
    order = order_of(h, group) if ordered else torch.arange(k, device=h.device)
    h = damped(h, damp)[order][:, order]
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(h))
    u = torch.linalg.cholesky(inverse, upper=True).float()
    w = weight.float()[:, order]
    codes = torch.empty_like(w)
    grids: dict[int, G] = {}
    for start in range(0, k, group):
        stop = start + group
        block, own = w[:, start:stop].clone(), u[start:stop, start:stop]
        number = int(order[start]) // group
        grid = grids[number] = choose(number, block, own.diagonal().square().reciprocal())
        errors = torch.empty_like(block)
        for i in range(group):
            column = block[:, i : i + 1]
            code = grid.codes(column)
            codes[:, start + i : start + i + 1] = code
            error = (column - grid.values(code)) / own[i, i]
            errors[:, i : i + 1] = error
            block[:, i + 1 :] -= error * own[i, i + 1 :]
        w[:, stop:] -= errors @ u[start:stop, stop:]
    back = order.argsort()
    return Rounded(codes[:, back], [grids[i] for i in range(k // group)])


def toward(weight: Tensor, h: Tensor, cross: Tensor, damp: float) -> Tensor:
    """The weights [n, k] whose outputs on x are nearest to those of `weight` on r, least squares.

    W + W C H^-1 with C = sum (r - x) x^T: rounding these against H minimises the error beside the
    unquantised model's outputs, whatever earlier layers did to the inputs.
    """
    factor = torch.linalg.cholesky(damped(h, damp))
    shift = weight.double() @ cross.double()
    return (weight.double() + torch.cholesky_solve(shift.t(), factor).t()).float()
