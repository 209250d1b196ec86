"""A row per program, read twice; the second time from a cache."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.define import variant
from kernels.gpu import SUPPORT, check, dependent_launch, let_next_start, wait_for_inputs
from kernels.quantise_rows.reference import fake, largest
from kernels.rounding import float8_codes

BLOCK = 4096


@triton.jit
def _quantise_rows(
    x_ptr,  # [rows, d]
    codes_ptr,  # [rows, d] int8, or float8 as bytes
    scale_ptr,  # [rows]
    d,
    MOST: tl.constexpr,
    FLOAT: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    let_next_start(PDL)
    wait_for_inputs(PDL)
    row = tl.program_id(0).to(tl.int64)
    col = tl.arange(0, BLOCK)
    most = tl.full([], MOST, tl.float32)
    tops = tl.zeros([BLOCK], tl.float32)
    broken = tl.zeros([BLOCK], tl.float32)
    for start in tl.range(0, d, BLOCK):
        x = tl.load(x_ptr + row * d + start + col, mask=start + col < d, other=0.0).to(tl.float32)
        tops = tl.maximum(tops, tl.abs(x))
        broken += x - x  # NaN where x is not finite: a maximum may drop it
    top = tl.max(tops, axis=0)
    some = tl.where(top == 0.0, most, top) + tl.sum(broken, axis=0)
    tl.store(scale_ptr + row, tl.div_rn(some, most))
    inverse = tl.div_rn(most, some)
    for start in tl.range(0, d, BLOCK):
        live = start + col < d
        x = tl.load(x_ptr + row * d + start + col, mask=live, other=0.0).to(tl.float32)
        y = x * inverse
        if FLOAT:
            codes = float8_codes(y)
        else:
            codes = (y + 12582912.0 - 12582912.0).to(tl.int8)  # 1.5 * 2^23: to nearest even
        tl.store(codes_ptr + row * d + start + col, codes, mask=live)


@variant("quantise_rows", "triton", fake, support=SUPPORT)
def quantise_rows(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """As the reference to the bit where all is finite, for contiguous x of at most 32 bits."""
    check("quantise_rows", 1, x=x)
    most, float8 = largest(dtype), dtype == torch.float8_e4m3fn
    if x.dtype == torch.float64:
        raise ValueError("quantise_rows: triton takes up to fp32, got float64; use reference")
    rows, d = x.shape
    codes = torch.empty_like(x, dtype=dtype)
    scale = x.new_empty(rows, dtype=torch.float32)
    if x.numel():
        overlap = dependent_launch(x.device)
        _quantise_rows[(rows,)](
            x,
            codes.view(torch.uint8) if float8 else codes,
            scale,
            d,
            MOST=most,
            FLOAT=float8,
            BLOCK=BLOCK,
            PDL=overlap,
            num_warps=8,
            enable_fp_fusion=False,
            launch_pdl=overlap,
        )
    return codes, scale
