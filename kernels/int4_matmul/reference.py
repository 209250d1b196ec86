"""The definitions: weights restored in fp32, one row a call; the fused forms as compositions."""

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.define import Support, variant
from kernels.int4_matmul.layout import GROUP, ROWS, dequantise
from kernels.matmul.reference import matmul
from kernels.precision import wide
from kernels.rms_norm.reference import add_rms_norm, times_unit
from kernels.silu_mul.reference import silu_mul

SHAPES = {"k": GROUP}


def group_sums(x: Tensor) -> Tensor:
    """x [rows, k] -> [rows, k / 128] in fp32."""
    return wide(x).unflatten(1, (-1, GROUP)).sum(-1)


def whole(x: Tensor) -> Tensor:
    """`squares` of rows [rows, k] that need no factor: they sum to exactly 1."""
    shares = wide(x.new_zeros(x.shape[0], x.shape[1] // GROUP))
    shares[:, 0] = 1.0
    return shares


def fake(
    x: Tensor,
    tiles: Tensor,
    splits: list[int],
    sums: Tensor | None = None,
    squares: Tensor | None = None,
) -> Tensor:
    return x.new_empty(x.shape[0], sum(splits))


@variant("int4_matmul", "reference", fake, support=Support(multiples=SHAPES))
def int4_matmul(
    x: Tensor,
    tiles: Tensor,
    splits: list[int],
    sums: Tensor | None = None,
    squares: Tensor | None = None,
) -> Tensor:
    """x [rows, k], tiles (layout.py) of sum(splits) output rows -> [rows, n] in x's dtype.

    `sums` [rows, k / 128] fp32 are x's sums by group, for variants that want them; with `squares`
    of that shape a row stands for x rsqrt(sum(squares)).
    """
    xf = wide(x)
    weight = dequantise(tiles, sum(splits), xf.dtype)
    y = torch.cat([F.linear(row, weight) for row in xf.split(1)])
    return times_unit(y, squares).to(x.dtype)


def fake_beside(
    x: Tensor,
    tiles: Tensor,
    splits: list[int],
    weight: Tensor,
    weight_splits: list[int],
    sums: Tensor | None = None,
    squares: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    return fake(x, tiles, splits), x.new_empty(x.shape[0], weight.shape[0])


@variant("int4_matmul_beside", "reference", fake_beside, support=Support(multiples=SHAPES))
def int4_matmul_beside(
    x: Tensor,
    tiles: Tensor,
    splits: list[int],
    weight: Tensor,
    weight_splits: list[int],
    sums: Tensor | None = None,
    squares: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """int4_matmul, and a small dense weight [m, k] times the same rows -> [rows, m]."""
    z = matmul(x, weight, weight_splits)
    return int4_matmul(x, tiles, splits, sums, squares), times_unit(z, squares)


def fake_add_norm(
    x: Tensor,
    tiles: Tensor,
    residual: Tensor,
    gain: Tensor,
    eps: float,
    sums: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    rows, n = residual.shape
    shares = [x.new_empty(rows, n // GROUP, dtype=torch.float32) for _ in range(2)]
    return torch.empty_like(residual), torch.empty_like(residual), shares[0], shares[1]


@variant("int4_add_norm", "reference", fake_add_norm, support=Support(multiples=SHAPES))
def int4_add_norm(
    x: Tensor,
    tiles: Tensor,
    residual: Tensor,
    gain: Tensor,
    eps: float,
    sums: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """s = residual + W x and its norm with gain 1 + gain, in the parts that int4_matmul takes.

    Gives s, normed [rows, n], sums and squares [rows, n / 128]: the norm of s is
    normed rsqrt(sum(squares)), `sums` are normed's sums by group. n is a multiple of 128.
    """
    delta = int4_matmul(x, tiles, [residual.shape[1]], sums)
    s, normed = add_rms_norm(residual, delta, gain, eps)
    return s, normed, group_sums(normed), whole(normed)


def fake_gate_up(
    x: Tensor, tiles: Tensor, sums: Tensor | None = None, squares: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    rows, width = x.shape[0], tiles.shape[0] * ROWS // 2
    return x.new_empty(rows, width), x.new_empty(rows, width // GROUP, dtype=torch.float32)


@variant("int4_gate_up", "reference", fake_gate_up, support=Support(multiples=SHAPES))
def int4_gate_up(
    x: Tensor, tiles: Tensor, sums: Tensor | None = None, squares: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """silu(gate) * up of [gate | up] = W x, and its sums by group of 128; see silu_mul."""
    h = silu_mul(int4_matmul(x, tiles, [tiles.shape[0] * ROWS], sums, squares))
    return h, group_sums(h)
