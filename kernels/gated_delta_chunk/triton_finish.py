"""The last launch: the gated norm, which normalises a head's rows in place.

Rows to a program are chosen for speed; it rounds where the reference does, and that may not change.
"""
# pyright: reportCallIssue=false
# (Triton's launch options exist inside its compiler alone.)

import triton
import triton.language as tl
from torch import Tensor

from kernels.gated_delta_chunk.triton_parts import quick_silu, store
from kernels.gpu import INTERPRETED
from kernels.rounding import rounded_pairs

FINISH_ROWS = 64 if INTERPRETED else 16  # of a head, normalised by one program


@triton.jit(do_not_specialize=["tokens"])
def _finish(
    qkvz_ptr,
    weight_ptr,
    y_ptr,
    tokens,
    eps,
    CHANNELS: tl.constexpr,
    V_HEADS: tl.constexpr,
    D_V: tl.constexpr,
    ROWS: tl.constexpr,
):
    """y = rms_norm_plain(o) * weight * silu(z), where y holds o."""
    dtype = y_ptr.dtype.element_ty
    STRIDE: tl.constexpr = CHANNELS + V_HEADS * D_V
    head = tl.program_id(0)
    row = tl.program_id(1).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    d = tl.arange(0, D_V)[None, :]
    live = (row < tokens) & (d >= 0)
    at = y_ptr + (row * V_HEADS + head) * D_V + d
    o = tl.load(at, mask=live, other=0.0).to(tl.float32)
    z = tl.load(qkvz_ptr + row * STRIDE + CHANNELS + head * D_V + d, mask=live, other=0.0)
    weight = tl.load(weight_ptr + d).to(tl.float32)
    o = rounded_pairs(o * tl.rsqrt(tl.sum(o * o, axis=1) / D_V + eps)[:, None], dtype)
    store(at, rounded_pairs(weight * o, dtype) * quick_silu(z.to(tl.float32)), mask=live)


def launch_finish(
    qkvz: Tensor, weight: Tensor, y: Tensor, eps: float, channels: int, v_heads: int, d_v: int
) -> None:
    """y [tokens, v_heads d_v] holds o and is overwritten; z stands behind qkvz's `channels`."""
    tokens = y.shape[0]
    _finish[(v_heads, triton.cdiv(tokens, FINISH_ROWS))](
        qkvz,
        weight,
        y,
        tokens,
        eps,
        CHANNELS=channels,
        V_HEADS=v_heads,
        D_V=d_v,
        ROWS=FINISH_ROWS,
        num_warps=4,
        enable_fp_fusion=False,
    )
