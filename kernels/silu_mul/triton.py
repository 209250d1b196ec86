"""Elementwise, a block of columns of one row per program."""

import triton
import triton.language as tl
from torch import Tensor

from kernels.define import variant
from kernels.gpu import SUPPORT, check, dependent_launch, let_next_start, wait_for_inputs
from kernels.rounding import rounded, silu
from kernels.silu_mul.reference import fake

BLOCK = 1024


@triton.jit
def _silu_mul(gate_up_ptr, y_ptr, d, BLOCK: tl.constexpr, PDL: tl.constexpr):
    let_next_start(PDL)
    wait_for_inputs(PDL)
    row = tl.program_id(0).to(tl.int64)  # many tokens of a wide matrix pass 2^31
    col = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = col < d
    dtype = y_ptr.dtype.element_ty
    gate = tl.load(gate_up_ptr + row * 2 * d + col, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(gate_up_ptr + row * 2 * d + d + col, mask=mask, other=0.0).to(tl.float32)
    y = rounded(silu(gate), dtype) * up
    tl.store(y_ptr + row * d + col, rounded(y, dtype).to(dtype), mask=mask)


@variant("silu_mul", "triton", fake, support=SUPPORT)
def silu_mul(gate_up: Tensor) -> Tensor:
    """As the reference, for contiguous gate_up."""
    check("silu_mul", 1, gate_up=gate_up)
    rows, d = gate_up.shape[0], gate_up.shape[1] // 2
    y = gate_up.new_empty(rows, d)
    if y.numel():
        grid = (rows, triton.cdiv(d, BLOCK))
        overlap = dependent_launch(y.device)
        _silu_mul[grid](
            gate_up,
            y,
            d,
            BLOCK=BLOCK,
            PDL=overlap,
            num_warps=4,
            enable_fp_fusion=False,
            launch_pdl=overlap,
        )
    return y
