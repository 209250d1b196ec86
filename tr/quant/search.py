"""Range search: the ends of a group's grid that minimise the weighted squared error.

Both ends shrink together first, then each moves on its own; at last scale and minimum are fitted
to the codes by least squares, where that helps. Errors are weighted by input, by the diagonal of
a Hessian, say: what counts is the layer's output.
"""

import torch
from torch import Tensor

from tr.quant.grid import Uniform, ends, nearest, restore, with_zero

TOGETHER = tuple(1 - 0.04 * i for i in range(13))  # factors of both ends, 1 .. 0.52
APART = (-0.12, -0.08, -0.04, -0.02, 0.02, 0.04, 0.08, 0.12)  # added to one end's factor
ROUNDS = 2
FITS = 2


def search(w: Tensor, weight: Tensor | None = None, integer: bool = False) -> Uniform:
    """One grid for each row of w [..., group]; weight [..., group] or [group], None: equal.

    `integer`: with integer zero points.
    """
    w = w.float()
    weight = torch.ones_like(w) if weight is None else weight.float().expand_as(w)
    low, high = w.aminmax(dim=-1, keepdim=True)
    down, up = (torch.ones_like(low) for _ in range(2))
    best = torch.full_like(low, torch.inf)

    def attempt(d: Tensor, u: Tensor) -> None:
        nonlocal best, down, up
        error = _error(w, weight, *ends(d * low, u * high, integer))
        better = error < best
        best = torch.where(better, error, best)
        down, up = torch.where(better, d, down), torch.where(better, u, up)

    for factor in TOGETHER:
        attempt(torch.full_like(low, factor), torch.full_like(low, factor))
    for _ in range(ROUNDS):
        for shift in APART:
            attempt(down + shift, up)
        for shift in APART:
            attempt(down, up + shift)
    scale, minimum = ends(down * low, up * high, integer)
    for _ in range(FITS):
        fitted = fit(nearest(w, scale.float(), minimum.float()), w, weight, scale)
        fitted = with_zero(*fitted) if integer else fitted
        error = _error(w, weight, *fitted)
        better = error < best
        best = torch.where(better, error, best)
        scale, minimum = (
            torch.where(better, a, b) for a, b in zip(fitted, (scale, minimum), strict=True)
        )
    return Uniform(scale, minimum)


def fit(codes: Tensor, w: Tensor, weight: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """scale and minimum that bring codes nearest to w, by weighted least squares.

    `scale` stays where the codes of a group are all equal.
    """
    total = weight.sum(-1, keepdim=True).clamp_min(torch.finfo(torch.float32).tiny)
    q, x = ((weight * t).sum(-1, keepdim=True) / total for t in (codes, w))
    spread = (weight * (codes - q).square()).sum(-1, keepdim=True)
    slope = (weight * (codes - q) * (w - x)).sum(-1, keepdim=True) / spread
    slope = torch.where((spread > 0) & (slope > 0), slope, scale.float()).bfloat16()
    return slope, (x - slope.float() * q).bfloat16()


def _error(w: Tensor, weight: Tensor, scale: Tensor, minimum: Tensor) -> Tensor:
    codes = nearest(w, scale.float(), minimum.float())
    return (weight * (w - restore(codes, scale, minimum)).square()).sum(-1, keepdim=True)
