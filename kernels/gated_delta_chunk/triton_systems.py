"""The second launch: the chunks' systems and scores, which need no state, so all run at once.

Per chunk and value head it leaves the inverse of the unit lower triangular system, the scores
inside the chunk, and the decays. Operands of the inverse are fp16 (its entries are at most 1 in
size), or fp32 where the activations are. What a program computes again rather than keeps may
change; the levels by which the inverse grows, and the gates, are numerics.
"""
# pyright: reportGeneralTypeIssues=false, reportCallIssue=false, reportAssignmentType=false
# (Triton's ranges, launch options and constants exist inside its compiler alone.)

import triton
import triton.language as tl
from torch import Tensor

from kernels.gated_delta_chunk.triton_inputs import carry
from kernels.gated_delta_chunk.triton_parts import load, operand, store
from kernels.rounding import PLAIN, rounded, softplus

_EXP = tl.constexpr("""{
    .reg .f32 t;
    mul.f32 t, $1, 0f3FB8AA3B;
    ex2.approx.ftz.f32 $0, t;
}""")


@triton.jit
def _exp(x):
    """exp(x), without subnormals."""
    if PLAIN:
        y = tl.exp(x)
    else:
        y = tl.inline_asm_elementwise(_EXP, "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)
    return y


@triton.jit
def _merged(x, owed, SIZE: tl.constexpr, DTYPE: tl.constexpr):
    """Diagonal blocks of SIZE of the inverse -> of twice that: X over Y gets the corner Y (-a) X.

    `owed`: -a as an operand.
    """
    CHUNK: tl.constexpr = x.shape[0]
    i = tl.arange(0, CHUNK)[:, None] // SIZE
    j = tl.arange(0, CHUNK)[None, :] // SIZE
    corner = (i % 2 == 1) & (i == j + 1)
    blocks = operand(x, DTYPE)
    y = tl.where(corner, tl.dot(blocks, owed, input_precision="tf32x3"), 0.0)
    return tl.dot(operand(y, DTYPE), blocks, x, input_precision="tf32x3")


@triton.jit
def _inverse(a, DTYPE: tl.constexpr):
    """(I + a)^-1 of strictly lower triangular fp32 a [chunk, chunk]."""
    CHUNK: tl.constexpr = a.shape[0]
    i = tl.arange(0, CHUNK)[:, None]
    j = tl.arange(0, CHUNK)[None, :]
    x = tl.where(i == j, 1.0, tl.where((i % 2 == 1) & (i == j + 1), -a, 0.0))
    for level in tl.static_range(1, 6):
        if (1 << level) < CHUNK:
            x = _merged(x, operand(-a, DTYPE), 1 << level, DTYPE)
    return x


@triton.jit
def _gates(ba_ptr, a_log_ptr, dt_bias_ptr, head, row, tokens, V_HEADS: tl.constexpr):
    """beta, G and D of one chunk of a head; without a token beta = g = 0."""
    dtype = ba_ptr.dtype.element_ty
    live = row < tokens
    b = tl.load(ba_ptr + row * 2 * V_HEADS + head, mask=live, other=0.0).to(tl.float32)
    a = tl.load(ba_ptr + row * 2 * V_HEADS + V_HEADS + head, mask=live, other=0.0).to(tl.float32)
    rate = tl.exp(tl.load(a_log_ptr + head).to(tl.float32))
    g = -rate * softplus(a + tl.load(dt_bias_ptr + head).to(tl.float32))
    beta = tl.where(live, rounded(1.0 / (1.0 + tl.exp(-b)), dtype), 0.0)
    total = tl.cumsum(tl.where(live, g, 0.0), axis=0)
    past = row[:, None] >= row[None, :]
    return beta, total, _exp(tl.where(past, total[:, None] - total[None, :], -float("inf")))


@triton.jit(do_not_specialize=["tokens"])
def _systems(
    qkvz_ptr,
    ba_ptr,
    a_log_ptr,
    dt_bias_ptr,
    tail_ptr,
    qk_ptr,
    inverse_ptr,
    inner_ptr,
    decay_ptr,
    tokens,
    K_HEADS: tl.constexpr,
    V_HEADS: tl.constexpr,
    D_K: tl.constexpr,
    D_V: tl.constexpr,
    WIDTH: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """Per chunk and value head: (I + a)^-1 diag(beta) and (q k^T) D, each [chunk, chunk], and
    decays since the chunk's start and until its end, [2, chunk].
    """
    GROUP: tl.constexpr = V_HEADS // K_HEADS
    CHANNELS: tl.constexpr = 2 * K_HEADS * D_K + V_HEADS * D_V
    STRIDE: tl.constexpr = CHANNELS + V_HEADS * D_V
    dtype = qkvz_ptr.dtype.element_ty
    NEAR: tl.constexpr = tl.float32 if dtype == tl.float32 else tl.float16
    k_head = tl.program_id(0)
    chunk = tl.program_id(1).to(tl.int64)
    d = tl.arange(0, D_K)
    if chunk == 0:
        for part in tl.static_range(2):
            channel = (part * K_HEADS + k_head) * D_K + d
            carry(qkvz_ptr, tail_ptr, channel, tokens, STRIDE, CHANNELS, WIDTH)
        for n in tl.static_range(GROUP):
            first = 2 * K_HEADS * D_K + (k_head * GROUP + n) * D_V
            channel = first + tl.arange(0, D_V)
            carry(qkvz_ptr, tail_ptr, channel, tokens, STRIDE, CHANNELS, WIDTH)
    i = tl.arange(0, CHUNK)
    row = chunk * CHUNK + i
    padded = tl.num_programs(1).to(tl.int64) * CHUNK
    span = row[:, None] * D_K + d[None, :]
    q = load(qk_ptr + k_head * padded * D_K + span)
    k = load(qk_ptr + (K_HEADS + k_head) * padded * D_K + span)
    at = i[:, None] * CHUNK + i[None, :]
    first = chunk * V_HEADS + k_head * GROUP
    scores = tl.dot(q, tl.trans(k), input_precision="tf32x3")
    for n in range(GROUP):
        _, total, decay = _gates(
            ba_ptr, a_log_ptr, dt_bias_ptr, k_head * GROUP + n, row, tokens, V_HEADS
        )
        last = tl.sum(tl.where(i == CHUNK - 1, total, 0.0), axis=0)
        tl.store(decay_ptr + (first + n) * 2 * CHUNK + i, _exp(total))
        tl.store(decay_ptr + (first + n) * 2 * CHUNK + CHUNK + i, _exp(last - total))
        store(inner_ptr + (first + n) * CHUNK * CHUNK + at, scores * decay)
    keys = tl.dot(k, tl.trans(k), input_precision="tf32x3")
    for n in range(GROUP):  # apart: the registers hold no scores beside an inverse
        beta, _, decay = _gates(
            ba_ptr, a_log_ptr, dt_bias_ptr, k_head * GROUP + n, row, tokens, V_HEADS
        )
        owed = tl.where(i[:, None] > i[None, :], beta[:, None] * keys * decay, 0.0)
        inverse = _inverse(owed, NEAR) * beta[None, :]
        store(inverse_ptr + (first + n) * CHUNK * CHUNK + at, inverse)


def launch_systems(
    qkvz: Tensor,
    ba: Tensor,
    a_log: Tensor,
    dt_bias: Tensor,
    tail: Tensor,
    qk: Tensor,
    inverse: Tensor,
    inner: Tensor,
    decay: Tensor,
    heads: dict[str, int],
    width: int,
) -> None:
    """Write inverse, inner [chunks, v_heads, chunk, chunk], decay [.., 2, chunk] and the tail."""
    chunks, _, _, n = inverse.shape
    _systems[(qk.shape[1], chunks)](
        qkvz,
        ba,
        a_log,
        dt_bias,
        tail,
        qk,
        inverse,
        inner,
        decay,
        qkvz.shape[0],
        **heads,
        WIDTH=width,
        num_warps=n // 16,
        enable_fp_fusion=False,
        num_stages=1,
    )
