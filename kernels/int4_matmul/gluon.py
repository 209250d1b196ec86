"""Int4 matmul for Hopper in Gluon: one program a processor, a ring of weights, warps on their own.

Whole blocks (gluon_ring.py) where they come out even, else stripes of them (gluon_stripes.py).
"""

from dataclasses import replace

import torch
from torch import Tensor

from kernels.define import variant
from kernels.gpu import SUPPORT
from kernels.int4_matmul.gluon_beside import BESIDE_ROWS
from kernels.int4_matmul.gluon_ring import launch_ring
from kernels.int4_matmul.gluon_stripes import AddNorm, fit, launch_stripes
from kernels.int4_matmul.launch import card, check
from kernels.int4_matmul.layout import GROUP, ROWS
from kernels.int4_matmul.plan import ring, ring_beside
from kernels.int4_matmul.reference import (
    SHAPES,
    fake,
    fake_add_norm,
    fake_beside,
    fake_gate_up,
)
from kernels.int4_matmul.triton import int4_add_norm as add_norm_in_triton

WIDTHS = replace(
    SUPPORT, devices=("cuda",), capability=(9, 0), below=(10, 0), multiples=SHAPES
)  # its ring needs a Hopper's shared memory


def _launch(
    x: Tensor,
    tiles: Tensor,
    sums: Tensor | None,
    squares: Tensor | None,
    y: Tensor,
    out_sums: Tensor | None = None,
) -> None:
    """y, or of [gate | up] silu(gate) up and its sums."""
    if not y.numel():
        return
    deal = ring(*tiles.shape[:2], card(x.device), paired=out_sums is not None)
    if deal is None:
        launch_stripes(x, tiles, sums, squares, y, out_sums)
    else:
        launch_ring(x, tiles, *deal, sums, squares, y, out_sums)


@variant("int4_matmul", "gluon", fake, support=WIDTHS)
def int4_matmul(
    x: Tensor,
    tiles: Tensor,
    splits: list[int],
    sums: Tensor | None = None,
    squares: Tensor | None = None,
) -> Tensor:
    """As the reference, for 1 to 16 rows of bfloat16."""
    n = sum(splits)
    check("int4_matmul", x, tiles, n, True, sums, squares)
    y = x.new_empty(x.shape[0], n)
    _launch(x, tiles, sums, squares, y)
    return y


@variant("int4_matmul_beside", "gluon", fake_beside, support=WIDTHS)
def int4_matmul_beside(
    x: Tensor,
    tiles: Tensor,
    splits: list[int],
    weight: Tensor,
    weight_splits: list[int],
    sums: Tensor | None = None,
    squares: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """As the reference, for 1 to 16 rows of bfloat16."""
    n = sum(splits)
    check("int4_matmul_beside", x, tiles, n, True, sums, squares, weight=weight)
    y, z = x.new_empty(x.shape[0], n), x.new_empty(x.shape[0], weight.shape[0])
    if y.numel():
        deal = ring_beside(tiles.shape[0], card(x.device), -(-weight.shape[0] // BESIDE_ROWS))
        launch_ring(x, tiles, *deal, sums, squares, y, beside=weight, z=z)
    return y, z


@variant("int4_gate_up", "gluon", fake_gate_up, support=WIDTHS)
def int4_gate_up(
    x: Tensor, tiles: Tensor, sums: Tensor | None = None, squares: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """As the reference, for 1 to 16 rows of bfloat16."""
    rows, width = x.shape[0], tiles.shape[0] * ROWS // 2
    check("int4_gate_up", x, tiles, 2 * width, True, sums, squares)
    if width % GROUP:
        raise ValueError(f"int4_gate_up: {width} outputs are no multiple of {GROUP}")
    y = x.new_empty(rows, width)
    out_sums = x.new_empty(rows, width // GROUP, dtype=torch.float32)
    _launch(x, tiles, sums, squares, y, out_sums)
    return y, out_sums


@variant("int4_add_norm", "gluon", fake_add_norm, support=WIDTHS)
def int4_add_norm(
    x: Tensor,
    tiles: Tensor,
    residual: Tensor,
    gain: Tensor,
    eps: float,
    sums: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """As the reference, for 1 to 16 rows of bfloat16. Few groups of inputs: Triton's kernel."""
    if not fit(tiles.shape[1]):
        return add_norm_in_triton(x, tiles, residual, gain, eps, sums)
    rows, n = residual.shape
    check("int4_add_norm", x, tiles, n, True, sums, None, residual=residual, gain=gain)
    y, normed = torch.empty_like(residual), torch.empty_like(residual)
    out_sums, squares = (x.new_empty(rows, n // GROUP, dtype=torch.float32) for _ in range(2))
    if y.numel():
        end = AddNorm(residual, gain, eps, normed, squares)
        launch_stripes(x, tiles, sums, None, y, out_sums, end)
    return y, normed, out_sums, squares
