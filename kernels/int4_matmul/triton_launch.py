"""The launches behind the Triton int4 variants: what they refuse, their plan, room for results.

A caller may choose the plan, and fp32 inside instead of tensor cores (`packed`), which is what the
interpreter can run. Another form is another launch here; how it ends is triton_finish.py's.
"""

import torch
import triton
from torch import Tensor

from kernels.gpu import INTERPRETED
from kernels.int4_matmul.launch import ADD_NORM, GATE_UP, PLAIN, card, check
from kernels.int4_matmul.layout import GROUP, ROWS
from kernels.int4_matmul.plan import Plan, plan
from kernels.int4_matmul.triton_kernel import launch_form
from kernels.int4_matmul.triton_multiply import BESIDE_ROWS


def launch(
    x: Tensor,
    tiles: Tensor,
    splits: list[int],
    sums: Tensor | None = None,
    squares: Tensor | None = None,
    chosen: Plan | None = None,
    packed: bool = not INTERPRETED,
) -> Tensor:
    """x [rows <= 16, k], tiles (layout.py) -> [rows, n] in x's dtype.

    Packed: x is bfloat16. Plain: fp32 inside, x of any dtype up to fp32.
    """
    n = sum(splits)
    check("int4_matmul", x, tiles, n, packed, sums, squares)
    chosen = chosen or plan(*tiles.shape[:2], card(x.device))
    y = x.new_empty(x.shape[0], n)
    launch_form(x, tiles, n, chosen, packed, PLAIN, sums, squares, y)
    return y


def launch_beside(
    x: Tensor,
    tiles: Tensor,
    splits: list[int],
    weight: Tensor,
    sums: Tensor | None = None,
    squares: Tensor | None = None,
    chosen: Plan | None = None,
    packed: bool = not INTERPRETED,
) -> tuple[Tensor, Tensor]:
    n, rows = sum(splits), x.shape[0]
    check("int4_matmul_beside", x, tiles, n, packed, sums, squares, weight=weight)
    if weight.shape[1:] != x.shape[1:]:
        raise ValueError(
            f"int4_matmul_beside: weight of {tuple(weight.shape)} does not fit x {tuple(x.shape)}"
        )
    spare = triton.cdiv(weight.shape[0], BESIDE_ROWS)
    chosen = chosen or plan(*tiles.shape[:2], card(x.device), spare=spare)
    y, z = x.new_empty(rows, n), x.new_empty(rows, weight.shape[0])
    launch_form(x, tiles, n, chosen, packed, PLAIN, sums, squares, y, z, weight)
    return y, z


def launch_add_norm(
    x: Tensor,
    tiles: Tensor,
    residual: Tensor,
    gain: Tensor,
    eps: float,
    sums: Tensor | None = None,
    chosen: Plan | None = None,
    packed: bool = not INTERPRETED,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    rows, n = residual.shape
    check("int4_add_norm", x, tiles, n, packed, sums, None, residual=residual, gain=gain)
    if n % GROUP or rows != x.shape[0] or gain.shape != (n,):
        raise ValueError(
            f"int4_add_norm: residual of {tuple(residual.shape)}, gain of {tuple(gain.shape)} and x"
            f" of {tuple(x.shape)} do not fit, or the output is no multiple of {GROUP}"
        )
    chosen = chosen or plan(*tiles.shape[:2], card(x.device), unit=2)
    s, normed = torch.empty_like(residual), torch.empty_like(residual)
    out_sums, out_squares = (x.new_empty(rows, n // GROUP, dtype=torch.float32) for _ in range(2))
    launch_form(
        x,
        tiles,
        n,
        chosen,
        packed,
        ADD_NORM,
        sums,
        None,
        s,
        residual=residual,
        gain=gain,
        after=(normed, out_sums, out_squares),
        eps=eps,
    )
    return s, normed, out_sums, out_squares


def launch_gate_up(
    x: Tensor,
    tiles: Tensor,
    sums: Tensor | None = None,
    squares: Tensor | None = None,
    chosen: Plan | None = None,
    packed: bool = not INTERPRETED,
) -> tuple[Tensor, Tensor]:
    rows, width = x.shape[0], tiles.shape[0] * ROWS // 2
    check("int4_gate_up", x, tiles, 2 * width, packed, sums, squares)
    if width % GROUP:
        raise ValueError(f"int4_gate_up: {width} outputs are no multiple of {GROUP}")
    chosen = chosen or plan(*tiles.shape[:2], card(x.device), unit=4)
    y = x.new_empty(rows, width)
    out_sums = x.new_empty(rows, width // GROUP, dtype=torch.float32)
    after = (None, out_sums, None)
    launch_form(x, tiles, width, chosen, packed, GATE_UP, sums, squares, y, after=after)
    return y, out_sums
