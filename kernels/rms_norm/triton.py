"""One program per row, one block per row: the width decides every sum, the row count none."""

from dataclasses import replace

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.define import variant
from kernels.gpu import (
    SUPPORT,
    check,
    dependent_launch,
    let_next_start,
    power_of_two,
    wait_for_inputs,
)
from kernels.rms_norm.reference import fake, fake_add, fake_unfold
from kernels.rounding import rounded

WIDEST = 16384
WIDTHS = replace(SUPPORT, most={"d": WIDEST})


@triton.jit
def over_rms(x, d, eps):
    """A row x / rms(x), fp32; columns past d hold 0."""
    return x * tl.rsqrt(tl.sum(x * x, axis=0) / d + eps)


@triton.jit
def unit_of(squares_ptr, row, parts, PARTS: tl.constexpr):
    """1 / rms of a row from the shares of its mean square."""
    part = tl.arange(0, PARTS)
    shares = tl.load(squares_ptr + row * parts + part, mask=part < parts, other=0.0)
    return tl.rsqrt(tl.sum(shares, axis=0))


@triton.jit
def _rms_norm(
    x_ptr,
    weight_ptr,
    y_ptr,
    d,
    eps,
    PLAIN_GAIN: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    let_next_start(PDL)
    wait_for_inputs(PDL)
    row = tl.program_id(0).to(tl.int64)
    col = tl.arange(0, BLOCK)
    mask = col < d
    dtype = y_ptr.dtype.element_ty
    x = tl.load(x_ptr + row * d + col, mask=mask, other=0.0).to(tl.float32)
    gain = tl.load(weight_ptr + col, mask=mask, other=0.0).to(tl.float32)
    y = over_rms(x, d, eps)
    if PLAIN_GAIN:
        y = rounded(y, dtype) * gain
    else:
        y = y * (1.0 + gain)
    tl.store(y_ptr + row * d + col, rounded(y, dtype).to(dtype), mask=mask)


@triton.jit
def _add_rms_norm(
    x_ptr, delta_ptr, weight_ptr, s_ptr, y_ptr, d, eps, BLOCK: tl.constexpr, PDL: tl.constexpr
):
    let_next_start(PDL)
    wait_for_inputs(PDL)
    row = tl.program_id(0).to(tl.int64)
    col = tl.arange(0, BLOCK)
    mask = col < d
    place = row * d + col
    dtype = y_ptr.dtype.element_ty
    delta = tl.load(delta_ptr + place, mask=mask, other=0.0).to(tl.float32)
    s = rounded(tl.load(x_ptr + place, mask=mask, other=0.0).to(tl.float32) + delta, dtype)
    gain = tl.load(weight_ptr + col, mask=mask, other=0.0).to(tl.float32)
    y = over_rms(s, d, eps) * (1.0 + gain)
    tl.store(s_ptr + place, s.to(dtype), mask=mask)
    tl.store(y_ptr + place, rounded(y, dtype).to(dtype), mask=mask)


@triton.jit
def _unfold_norm(
    x_ptr,
    squares_ptr,
    y_ptr,
    d,
    parts,
    PARTS: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    let_next_start(PDL)
    wait_for_inputs(PDL)
    row = tl.program_id(0)
    col = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    dtype = y_ptr.dtype.element_ty
    unit = unit_of(squares_ptr, row, parts, PARTS)
    y = tl.load(x_ptr + row * d + col, mask=col < d, other=0.0).to(tl.float32) * unit
    tl.store(y_ptr + row * d + col, rounded(y, dtype).to(dtype), mask=col < d)


def one_block(operator: str, x: Tensor, weight: Tensor) -> dict[str, int]:
    """Options: a block as wide as the row, a warp for every 512 columns (1 to 16), overlap."""
    d = x.shape[-1]
    if weight.shape != (d,):
        raise ValueError(f"{operator}: a gain of {tuple(weight.shape)} for rows of width {d}")
    if d > WIDEST:
        raise ValueError(
            f"{operator}: triton takes widths up to {WIDEST}, got {d};"
            f" use kernel.{operator}=reference"
        )
    block = power_of_two(d)
    warps = min(max(block // 512, 1), 16)
    return {"BLOCK": block, "num_warps": warps, "enable_fp_fusion": False, **_overlap(x)}


def _overlap(x: Tensor) -> dict[str, int]:
    overlap = dependent_launch(x.device)
    return {"PDL": overlap, "launch_pdl": overlap}


def launch(x: Tensor, weight: Tensor, eps: float, plain: bool) -> Tensor:
    operator = "rms_norm_plain" if plain else "rms_norm"
    check(operator, 1, x=x, weight=weight)
    d = x.shape[-1]
    y = torch.empty_like(x)
    block = one_block(operator, x, weight)
    if x.numel():
        _rms_norm[(x.numel() // d,)](x, weight, y, d, eps, PLAIN_GAIN=plain, **block)
    return y


@variant("rms_norm", "triton", fake, support=WIDTHS)
def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """As the reference, for contiguous x of width up to 16384."""
    return launch(x, weight, eps, plain=False)


@variant("rms_norm_plain", "triton", fake, support=WIDTHS)
def rms_norm_plain(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """As the reference, for contiguous x of width up to 16384."""
    return launch(x, weight, eps, plain=True)


@variant("add_rms_norm", "triton", fake_add, support=WIDTHS)
def add_rms_norm(x: Tensor, delta: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """As the reference, for contiguous x of width up to 16384."""
    check("add_rms_norm", 1, x=x, delta=delta, weight=weight)
    if delta.shape != x.shape or delta.dtype != x.dtype:
        raise ValueError(
            f"add_rms_norm: x is {tuple(x.shape)} {x.dtype}; expected delta of that shape and"
            f" dtype, got {tuple(delta.shape)} {delta.dtype}"
        )
    d = x.shape[-1]
    s, y = torch.empty_like(x), torch.empty_like(x)
    block = one_block("add_rms_norm", x, weight)
    if x.numel():
        _add_rms_norm[(x.numel() // d,)](x, delta, weight, s, y, d, eps, **block)
    return s, y


@variant("unfold_norm", "triton", fake_unfold, support=SUPPORT)
def unfold_norm(x: Tensor, squares: Tensor) -> Tensor:
    """As the reference, for contiguous x."""
    check("unfold_norm", 1, x=x, squares=squares)
    rows, d = x.shape
    if squares.shape[0] != rows or squares.dtype != torch.float32:
        raise ValueError(
            f"unfold_norm: squares must be fp32 for {rows} rows, got {squares.dtype} of"
            f" {tuple(squares.shape)}"
        )
    y, parts = torch.empty_like(x), squares.shape[1]
    if y.numel():
        grid = (rows, triton.cdiv(d, 1024))
        _unfold_norm[grid](
            x,
            squares,
            y,
            d,
            parts,
            PARTS=power_of_two(parts),
            BLOCK=1024,
            enable_fp_fusion=False,
            **_overlap(x),
        )
    return y
