"""A few rows of a head per program; numbers without a scale are a library's copy."""

from dataclasses import replace

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.define import variant
from kernels.gpu import (
    INTERPRETED,
    SUPPORT,
    check,
    dependent_launch,
    let_next_start,
    wait_for_inputs,
)
from kernels.hadamard import rotation_back
from kernels.kv_restore.reference import fake
from kernels.rounding import rounded

ROWS = 64 if INTERPRETED else 8


@triton.jit(do_not_specialize=["keys"])
def _kv_restore(
    codes_ptr,
    scale_ptr,
    y_ptr,
    keys,
    codes_head,  # from one head's codes to the next one's
    scale_head,
    y_head,
    D: tl.constexpr,
    ROWS: tl.constexpr,
    HALVES: tl.constexpr,  # codes in a byte
    PDL: tl.constexpr,
):
    let_next_start(PDL)
    wait_for_inputs(PDL)
    above = tl.program_id(0) * ROWS
    head = tl.program_id(1).to(tl.int64)
    row = tl.arange(0, ROWS)
    live = row < keys - above
    scale = tl.load(scale_ptr + head * scale_head + above + row, mask=live, other=0.0)
    WIDTH: tl.constexpr = D // HALVES
    at = row[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
    codes_ptr += head * codes_head + above.to(tl.int64) * WIDTH
    codes = tl.load(codes_ptr + at, mask=live[:, None], other=0)
    d = tl.broadcast_to(tl.arange(0, D)[None, :], [ROWS, D])
    if HALVES == 2:
        codes = codes.to(tl.int32)
        x = tl.interleave(codes & 15, codes >> 4).to(tl.float32) - 7.5
        x = rotation_back(x * scale[:, None], d, D)
    else:
        x = codes.to(tl.float32) * scale[:, None]
    dtype = y_ptr.dtype.element_ty
    y_ptr += head * y_head + above.to(tl.int64) * D
    tl.store(y_ptr + row[:, None] * D + d, rounded(x, dtype).to(dtype), mask=live[:, None])


@variant("kv_restore", "triton", fake, ("y",), replace(SUPPORT, powers={"d_head": 16}))
def kv_restore(codes: Tensor, scale: Tensor | None, y: Tensor) -> None:
    """As the reference to the bit, for heads whose width is a power of two and y of up to 32 bits.

    All may be cut out of longer tensors; their heads are contiguous.
    """
    if scale is None:
        y.copy_(codes)
        return
    check("kv_restore", 1, codes=codes[0], scale=scale[0], y=y[0])
    heads, keys, d = y.shape
    halves = 2 if codes.dtype == torch.uint8 else 1
    if codes.shape != (heads, keys, d // halves) or scale.shape != (heads, keys):
        raise ValueError(
            f"kv_restore: codes {tuple(codes.shape)} {codes.dtype} with scales"
            f" {tuple(scale.shape)} are not those of numbers {tuple(y.shape)}"
        )
    if codes.dtype not in (torch.int8, torch.uint8) or scale.dtype != torch.float32:
        raise ValueError(
            f"kv_restore: expected int8 or uint8 codes and fp32 scales, got {codes.dtype} and"
            f" {scale.dtype}"
        )
    if d & (d - 1) or d < 16 or y.dtype == torch.float64:
        raise ValueError(
            f"kv_restore: triton needs up to 32 bits and a head width that is a power of two from"
            f" 16 on, got {y.dtype} and {d}; use kernel.kv_restore=reference"
        )
    overlap = dependent_launch(codes.device)
    _kv_restore[(-(-keys // ROWS), heads)](
        codes,
        scale,
        y,
        keys,
        codes.stride(0),
        scale.stride(0),
        y.stride(0),
        D=d,
        ROWS=ROWS,
        HALVES=halves,
        PDL=overlap,
        num_warps=4,
        enable_fp_fusion=False,
        launch_pdl=overlap,
    )
