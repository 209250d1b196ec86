"""Always 16 rows, weights restored in fp32: one library call whatever the caller's row count."""

import torch.nn.functional as F
from torch import Tensor

from kernels.define import Support, variant
from kernels.int4_matmul.layout import ROWS, dequantise
from kernels.int4_matmul.reference import (
    SHAPES,
    fake,
    fake_add_norm,
    fake_beside,
    fake_gate_up,
    group_sums,
    whole,
)
from kernels.matmul.tile import matmul, tile
from kernels.precision import wide
from kernels.rms_norm.reference import add_rms_norm, times_unit
from kernels.silu_mul.tile import silu_mul


@variant("int4_matmul", "tile", fake, support=Support(multiples=SHAPES))
def int4_matmul(
    x: Tensor,
    tiles: Tensor,
    splits: list[int],
    sums: Tensor | None = None,
    squares: Tensor | None = None,
) -> Tensor:
    """x [rows <= 16, k], tiles (layout.py) -> [rows, sum(splits)] in x's dtype."""
    xf = tile(wide(x))
    y = F.linear(xf, dequantise(tiles, sum(splits), xf.dtype))
    return times_unit(y[: x.shape[0]], squares).to(x.dtype, copy=True)


@variant("int4_matmul_beside", "tile", fake_beside, support=Support(multiples=SHAPES))
def int4_matmul_beside(
    x: Tensor,
    tiles: Tensor,
    splits: list[int],
    weight: Tensor,
    weight_splits: list[int],
    sums: Tensor | None = None,
    squares: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """As the reference, for at most 16 rows; weight in x's dtype or fp32."""
    z = matmul(x, weight, weight_splits)
    return int4_matmul(x, tiles, splits, sums, squares), times_unit(z, squares)


@variant("int4_add_norm", "tile", fake_add_norm, support=Support(multiples=SHAPES))
def int4_add_norm(
    x: Tensor,
    tiles: Tensor,
    residual: Tensor,
    gain: Tensor,
    eps: float,
    sums: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """As the reference, for at most 16 rows."""
    delta = int4_matmul(x, tiles, [residual.shape[1]], sums)
    s, normed = add_rms_norm(residual, delta, gain, eps)
    return s, normed, group_sums(normed), whole(normed)


@variant("int4_gate_up", "tile", fake_gate_up, support=Support(multiples=SHAPES))
def int4_gate_up(
    x: Tensor, tiles: Tensor, sums: Tensor | None = None, squares: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """As the reference, for at most 16 rows."""
    h = silu_mul(int4_matmul(x, tiles, [tiles.shape[0] * ROWS], sums, squares))
    return h, group_sums(h)
