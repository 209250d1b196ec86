"""One program per row, one block per row: the width decides every sum, the row count none."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.define import variant
from kernels.gpu import SUPPORT, check, power_of_two
from kernels.rms_norm.reference import fake, fake_add
from kernels.rounding import rounded

WIDEST = 16384


@triton.jit
def _rms_norm(x_ptr, weight_ptr, y_ptr, d, eps, PLAIN_GAIN: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    col = tl.arange(0, BLOCK)
    mask = col < d
    dtype = y_ptr.dtype.element_ty
    x = tl.load(x_ptr + row * d + col, mask=mask, other=0.0).to(tl.float32)
    gain = tl.load(weight_ptr + col, mask=mask, other=0.0).to(tl.float32)
    y = x * tl.rsqrt(tl.sum(x * x, axis=0) / d + eps)
    if PLAIN_GAIN:
        y = rounded(y, dtype) * gain
    else:
        y = y * (1.0 + gain)
    tl.store(y_ptr + row * d + col, rounded(y, dtype).to(dtype), mask=mask)


@triton.jit(do_not_specialize=["rows"])
def _add_rms_norm(
    x_ptr,
    delta_ptr,
    weight_ptr,
    s_ptr,
    y_ptr,
    rows,
    d,
    eps,
    PARTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    col = tl.arange(0, BLOCK)
    mask = col < d
    place = row * d + col
    dtype = y_ptr.dtype.element_ty
    delta = tl.load(delta_ptr + place, mask=mask, other=0.0).to(tl.float32)
    for part in tl.static_range(1, PARTS):
        delta = delta + tl.load(delta_ptr + part * rows * d + place, mask=mask, other=0.0)
    s = tl.load(x_ptr + place, mask=mask, other=0.0).to(tl.float32) + rounded(delta, dtype)
    s = rounded(s, dtype)
    gain = tl.load(weight_ptr + col, mask=mask, other=0.0).to(tl.float32)
    y = s * tl.rsqrt(tl.sum(s * s, axis=0) / d + eps) * (1.0 + gain)
    tl.store(s_ptr + place, s.to(dtype), mask=mask)
    tl.store(y_ptr + place, rounded(y, dtype).to(dtype), mask=mask)


def _block(operator: str, x: Tensor, weight: Tensor) -> dict[str, int]:
    """A block as wide as the row, and a warp for every 512 columns (1 to 16)."""
    d = x.shape[-1]
    if weight.shape != (d,):
        raise ValueError(f"{operator}: a gain of {tuple(weight.shape)} for rows of width {d}")
    if d > WIDEST:
        raise ValueError(
            f"{operator}: triton takes widths up to {WIDEST}, got {d};"
            f" use kernel.{operator}=reference"
        )
    block = power_of_two(d)
    return {"BLOCK": block, "num_warps": min(max(block // 512, 1), 16), "enable_fp_fusion": False}


def launch(x: Tensor, weight: Tensor, eps: float, plain: bool) -> Tensor:
    operator = "rms_norm_plain" if plain else "rms_norm"
    check(operator, 1, x=x, weight=weight)
    d = x.shape[-1]
    y = torch.empty_like(x)
    block = _block(operator, x, weight)
    if x.numel():
        _rms_norm[(x.numel() // d,)](x, weight, y, d, eps, PLAIN_GAIN=plain, **block)
    return y


@variant("rms_norm", "triton", fake, support=SUPPORT)
def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """As the reference, for contiguous x of width up to 16384."""
    return launch(x, weight, eps, plain=False)


@variant("rms_norm_plain", "triton", fake, support=SUPPORT)
def rms_norm_plain(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """As the reference, for contiguous x of width up to 16384."""
    return launch(x, weight, eps, plain=True)


@variant("add_rms_norm", "triton", fake_add, support=SUPPORT)
def add_rms_norm(x: Tensor, delta: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """As the reference, for contiguous x of width up to 16384."""
    check("add_rms_norm", 1, x=x, delta=delta, weight=weight)
    parts = delta.shape[0] if delta.ndim > x.ndim else 1
    wanted = torch.float32 if delta.ndim > x.ndim else x.dtype
    if delta.shape[delta.ndim - x.ndim :] != x.shape or delta.dtype != wanted:
        raise ValueError(
            f"add_rms_norm: x is {tuple(x.shape)} {x.dtype}; expected delta of that shape and"
            f" dtype, or fp32 parts of it, got {tuple(delta.shape)} {delta.dtype}"
        )
    d = x.shape[-1]
    s, y = torch.empty_like(x), torch.empty_like(x)
    block = _block("add_rms_norm", x, weight)
    if x.numel():
        rows = x.numel() // d
        _add_rms_norm[(rows,)](x, delta, weight, s, y, rows, d, eps, PARTS=parts, **block)
    return s, y
