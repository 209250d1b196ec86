"""The uniform grid: a weight is code * scale + minimum in fp32, rounded once to bfloat16.

Every quantiser chooses its codes against these numbers, which are those of `layout.dequantise`.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

LEVELS = 16
#: bits of a scale whose product with 0 .. 15 still is a bfloat16
KEPT_BITS = (8, 8, 8, 6, 8, 5, 6, 5, 8, 4, 5, 4, 6, 4, 5, 4)


@dataclass(frozen=True)
class Uniform:
    """Groups of one scale and one minimum for each row: both [n, 1] bfloat16."""

    scale: Tensor
    minimum: Tensor

    def codes(self, w: Tensor) -> Tensor:
        """The nearest levels to w [n, c], as fp32."""
        return nearest(w, self.scale.float(), self.minimum.float())

    def values(self, codes: Tensor) -> Tensor:
        """[n, c] fp32."""
        return restore(codes, self.scale, self.minimum)


def nearest(w: Tensor, scale: Tensor, minimum: Tensor) -> Tensor:
    """Codes of w by parameters that broadcast with it, all fp32."""
    return ((w - minimum) / scale).round_().clamp_(0, LEVELS - 1)


def restore(codes: Tensor, scale: Tensor, minimum: Tensor) -> Tensor:
    """The numbers that codes stand for, in fp32; parameters broadcast with them."""
    return (codes.float() * scale.float() + minimum.float()).bfloat16().float()


def ends(low: Tensor, high: Tensor, integer: bool = False) -> tuple[Tensor, Tensor]:
    """scale and minimum, bfloat16, of grids from `low` to `high`; scale is 1 where both agree.

    `integer`: of the nearest grid with an integer zero point; 0 is then one of its levels.
    """
    if integer:
        low, high = low.clamp(max=0), high.clamp(min=0)
    minimum, scale = low.bfloat16(), ((high - low) / (LEVELS - 1)).bfloat16()
    if not (minimum.isfinite() & scale.isfinite()).all():
        raise ValueError("int4: the weights hold infinite or missing numbers")
    scale = torch.where(scale == 0, 1.0, scale)
    return with_zero(scale, low) if integer else (scale, minimum)


def with_zero(scale: Tensor, minimum: Tensor) -> tuple[Tensor, Tensor]:
    """The nearest pair, bfloat16, where minimum = -zero * scale to the bit, zero one of 0 .. 15.

    bfloat16 has 8 significant bits: the scale keeps as many of them as the zero point's odd part
    leaves.
    """
    scale = scale.float()
    zero = (-minimum.float() / scale).round().clamp(0, LEVELS - 1)
    kept = torch.tensor(KEPT_BITS, device=scale.device)[zero.long()]
    fraction, exponent = torch.frexp(scale)
    unit = torch.exp2(kept.float())
    scale = torch.ldexp((fraction * unit).round() / unit, exponent)
    return scale.bfloat16(), (-zero * scale).bfloat16()


def plain(w: Tensor, weight: Tensor | None = None, integer: bool = False) -> Uniform:
    """The grid between the ends of each row of w [n, group]."""
    low, high = w.aminmax(dim=-1, keepdim=True)
    return Uniform(*ends(low, high, integer))
