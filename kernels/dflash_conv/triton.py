"""One program for every 128 columns of all rows: sums by group, and the row before, are at hand."""

from dataclasses import replace
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.define import variant
from kernels.dflash_conv.reference import SHAPES, fake_conv, fake_conv_add_norm, fake_embed
from kernels.gpu import (
    SUPPORT,
    check,
    dependent_launch,
    let_next_start,
    power_of_two,
    same_dtype,
    wait_for_inputs,
)
from kernels.int4_matmul.layout import GROUP
from kernels.rounding import rounded

_GROUP = tl.constexpr(GROUP)
WIDTHS = replace(SUPPORT, multiples=SHAPES)


@triton.jit
def _leave_parts(
    s, gain_ptr, s_ptr, normed_ptr, sums_ptr, squares_ptr, row, col, live, part, parts, eps
):
    """Store s [rows, 128] and what a reader needs of its norm."""
    dtype = s_ptr.dtype.element_ty
    d = parts * _GROUP
    at = row[:, None] * d + col[None, :]
    mask = live[:, None] & (col >= 0)[None, :]
    h = rounded(s * tl.load(gain_ptr + col).to(tl.float32)[None, :], dtype)
    tl.store(s_ptr + at, s.to(dtype), mask=mask)
    tl.store(normed_ptr + at, h.to(dtype), mask=mask)
    share = row * parts + part
    tl.store(sums_ptr + share, tl.sum(h, axis=1), mask=live)
    square = tl.sum(s * s, axis=1) / d + tl.where(part == 0, eps, 0.0)
    tl.store(squares_ptr + share, square, mask=live)


@triton.jit(do_not_specialize=["mask_token"])
def _embed(
    embed_ptr,
    anchor_ptr,
    gain_ptr,
    s_ptr,
    normed_ptr,
    sums_ptr,
    squares_ptr,
    mask_token,
    rows,
    parts,
    scale,
    eps,
    ROWS: tl.constexpr,
    PDL: tl.constexpr,
):
    let_next_start(PDL)
    wait_for_inputs(PDL)
    part = tl.program_id(0)
    row = tl.arange(0, ROWS)
    col = part * _GROUP + tl.arange(0, _GROUP)
    live = row < rows
    token = tl.where(row == 0, tl.load(anchor_ptr), mask_token.to(tl.int64))
    at = token[:, None] * (parts * _GROUP) + col[None, :]
    x = tl.load(embed_ptr + at, mask=live[:, None], other=0.0).to(tl.float32) * scale
    x = rounded(x, s_ptr.dtype.element_ty)
    _leave_parts(
        x, gain_ptr, s_ptr, normed_ptr, sums_ptr, squares_ptr, row, col, live, part, parts, eps
    )


@triton.jit
def _units(squares_ptr, row, live, parts, PARTS: tl.constexpr):
    """1 / rms of rows from the shares of their mean square."""
    p = tl.arange(0, PARTS)[None, :]
    mask = live[:, None] & (p < parts)
    shares = tl.load(squares_ptr + row[:, None] * parts + p, mask=mask, other=0.0)
    return tl.rsqrt(tl.where(live, tl.sum(shares, axis=1), 1.0))


@triton.jit
def _conv(
    z_ptr,
    squares_ptr,  # of z, where SCALED
    dynamic_ptr,
    base_ptr,
    residual_ptr,
    gain_ptr,
    y_ptr,
    normed_ptr,
    sums_ptr,
    out_squares_ptr,
    rows,
    parts,
    eps,
    SIDE: tl.constexpr,
    SIDES: tl.constexpr,
    WIDTH: tl.constexpr,
    CHANNELS: tl.constexpr,  # that share a dynamic tap
    SCALED: tl.constexpr,
    ADDED: tl.constexpr,
    ROWS: tl.constexpr,
    PARTS: tl.constexpr,
    PDL: tl.constexpr,
):
    """`dflash_conv` where SCALED, `dflash_conv_add_norm` where ADDED; one rounding, at the end."""
    let_next_start(PDL)
    wait_for_inputs(PDL)
    dtype = y_ptr.dtype.element_ty
    part = tl.program_id(0)
    row = tl.arange(0, ROWS)
    col = part * _GROUP + tl.arange(0, _GROUP)
    live = row < rows
    d = parts * _GROUP
    groups = d // CHANNELS
    at = row[:, None] * d + col[None, :]
    shifted = ()
    for j in tl.static_range(WIDTH):
        there = live & (row >= j)
        z = tl.load(z_ptr + at - j * d, mask=there[:, None], other=0.0).to(tl.float32)
        if SCALED:
            z = z * _units(squares_ptr, row - j, there, parts, PARTS)[:, None]
        shifted = shifted + (z,)
    base_ptr += SIDE * WIDTH * d
    dynamic_ptr += row[:, None] * (SIDES * WIDTH * groups) + (col // CHANNELS)[None, :]
    out = tl.zeros([ROWS, _GROUP], tl.float32)
    for j in tl.static_range(WIDTH):
        out += shifted[j] * tl.load(base_ptr + j * d + col).to(tl.float32)[None, :]
    for j in tl.static_range(WIDTH):
        tap = dynamic_ptr + (SIDE * WIDTH + j) * groups
        out += shifted[j] * tl.load(tap, mask=live[:, None], other=0.0).to(tl.float32)
    if ADDED:
        s = tl.load(residual_ptr + at, mask=live[:, None], other=0.0).to(tl.float32)
        _leave_parts(
            rounded(s + out, dtype), gain_ptr, y_ptr, normed_ptr, sums_ptr, out_squares_ptr,
            row, col, live, part, parts, eps,
        )  # fmt: skip
    else:
        out = rounded(out, dtype)
        tl.store(y_ptr + at, out.to(dtype), mask=live[:, None])
        tl.store(sums_ptr + row * parts + part, tl.sum(out, axis=1), mask=live)


def _options(x: Tensor, rows: int) -> dict[str, Any]:
    overlap = dependent_launch(x.device)
    return {
        "ROWS": power_of_two(rows),
        "PDL": overlap,
        "num_warps": 4,
        "enable_fp_fusion": False,
        "launch_pdl": overlap,
    }


def _whole_groups(operator: str, d: int) -> int:
    if d % GROUP:
        raise ValueError(
            f"{operator}: triton needs rows of a multiple of {GROUP} columns, got {d}; use"
            f" kernel.{operator}=reference"
        )
    return d // GROUP


def _convolve(
    operator: str,
    z: Tensor,
    dynamic: Tensor,
    base: Tensor,
    side: int,
    squares: Tensor | None = None,
    residual: Tensor | None = None,
    gain: Tensor | None = None,
    eps: float = 0.0,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """y, normed, sums, squares; without a residual the second and the last hold nothing."""
    rows, d = z.shape
    sides, width, _ = base.shape
    parts, groups = _whole_groups(operator, d), dynamic.shape[1] // (sides * width)
    if dynamic.shape[0] != rows or base.shape[2] != d or not groups or d % groups:
        raise ValueError(
            f"{operator}: base of {tuple(base.shape)} and dynamic of {tuple(dynamic.shape)} do not"
            f" fit rows of {tuple(z.shape)}"
        )
    y, normed = torch.empty_like(z), torch.empty_like(z) if residual is not None else z
    sums, out_squares = (z.new_empty(rows, parts, dtype=torch.float32) for _ in range(2))
    _conv[(parts,)](
        z,
        sums if squares is None else squares,
        dynamic,
        base,
        z if residual is None else residual,
        z if gain is None else gain,
        y,
        normed,
        sums,
        out_squares,
        rows,
        parts,
        eps,
        SIDE=side,
        SIDES=sides,
        WIDTH=width,
        CHANNELS=d // groups,
        SCALED=squares is not None,
        ADDED=residual is not None,
        PARTS=power_of_two(parts),
        **_options(z, rows),
    )
    return y, normed, sums, out_squares


@variant("dflash_embed", "triton", fake_embed, support=WIDTHS)
def dflash_embed(
    embed: Tensor, anchor: Tensor, mask: int, rows: int, scale: float, gain: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """As the reference, for 1 to 16 rows; normed = x gain, rounded once."""
    check("dflash_embed", rows, embed=embed, gain=gain)
    same_dtype("dflash_embed", embed=embed, gain=gain)
    d = embed.shape[1]
    parts = _whole_groups("dflash_embed", d)
    x, normed = (embed.new_empty(rows, d) for _ in range(2))
    sums, squares = (embed.new_empty(rows, parts, dtype=torch.float32) for _ in range(2))
    _embed[(parts,)](
        embed,
        anchor,
        gain,
        x,
        normed,
        sums,
        squares,
        mask,
        rows,
        parts,
        float(scale),
        eps,
        **_options(embed, rows),
    )
    return x, normed, sums, squares


@variant("dflash_conv", "triton", fake_conv, support=WIDTHS)
def dflash_conv(
    x: Tensor, squares: Tensor, dynamic: Tensor, base: Tensor, side: int
) -> tuple[Tensor, Tensor]:
    """As the reference, for 1 to 16 rows."""
    check("dflash_conv", x.shape[0], x=x, squares=squares, dynamic=dynamic, base=base)
    same_dtype("dflash_conv", x=x, dynamic=dynamic, base=base)
    y, _, sums, _ = _convolve("dflash_conv", x, dynamic, base, side, squares)
    return y, sums


@variant("dflash_conv_add_norm", "triton", fake_conv_add_norm, support=WIDTHS)
def dflash_conv_add_norm(
    z: Tensor,
    dynamic: Tensor,
    base: Tensor,
    side: int,
    residual: Tensor,
    gain: Tensor,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """As the reference, for 1 to 16 rows; normed = s gain, rounded once."""
    named = {"z": z, "dynamic": dynamic, "base": base, "residual": residual, "gain": gain}
    check("dflash_conv_add_norm", z.shape[0], **named)
    same_dtype("dflash_conv_add_norm", **named)
    return _convolve("dflash_conv_add_norm", z, dynamic, base, side, None, residual, gain, eps)
