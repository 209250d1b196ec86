"""Packed tensor-core int4 matmul: weights on the M side of the dot, 16 columns of x on the other.

One launch a matrix (triton_launch.py). A program multiplies its stripe of units (plan.py) by
operands whose elements are the exact integers 128 + code (triton_multiply.py), and the one that
arrives last at a block finishes it (triton_kernel.py, triton_finish.py). Nothing depends on the row
count, so neither do bits. Here are the variants: their contracts, and where they run.
"""

from dataclasses import replace

from torch import Tensor

from kernels.define import variant
from kernels.gpu import SUPPORT
from kernels.int4_matmul.reference import (
    SHAPES,
    fake,
    fake_add_norm,
    fake_beside,
    fake_gate_up,
)
from kernels.int4_matmul.triton_launch import (
    launch,
    launch_add_norm,
    launch_beside,
    launch_gate_up,
)

WIDTHS = replace(SUPPORT, multiples=SHAPES)


@variant("int4_matmul", "triton", fake, support=WIDTHS)
def int4_matmul(
    x: Tensor,
    tiles: Tensor,
    splits: list[int],
    sums: Tensor | None = None,
    squares: Tensor | None = None,
) -> Tensor:
    """As the reference, for 1 to 16 rows of bfloat16."""
    return launch(x, tiles, splits, sums, squares)


@variant("int4_matmul_beside", "triton", fake_beside, support=WIDTHS)
def int4_matmul_beside(
    x: Tensor,
    tiles: Tensor,
    splits: list[int],
    weight: Tensor,
    weight_splits: list[int],
    sums: Tensor | None = None,
    squares: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """As the reference, in one launch, for 1 to 16 rows of bfloat16."""
    return launch_beside(x, tiles, splits, weight, sums, squares)


@variant("int4_add_norm", "triton", fake_add_norm, support=WIDTHS)
def int4_add_norm(
    x: Tensor,
    tiles: Tensor,
    residual: Tensor,
    gain: Tensor,
    eps: float,
    sums: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """normed = s (1 + gain), rounded once; `squares` hold the shares of mean(s^2) + eps."""
    return launch_add_norm(x, tiles, residual, gain, eps, sums)


@variant("int4_gate_up", "triton", fake_gate_up, support=WIDTHS)
def int4_gate_up(
    x: Tensor, tiles: Tensor, sums: Tensor | None = None, squares: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """As the reference, for 1 to 16 rows of bfloat16."""
    return launch_gate_up(x, tiles, sums, squares)
