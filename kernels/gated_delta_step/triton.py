"""Two launches: heads and rows side by side, then the recurrence by columns of the state.

`_prepare` does what rows do alone: convolution, silu, l2 norms, gates. `_advance` owns a block of
columns of one value head's state: it absorbs, stores the checkpoint, runs the rows. One launch
would not do: records, tail and gates are read by every program of a key head and overwritten in the
same call, and each of those programs (24 with 16 columns each) would repeat the convolution.

A new record's owner in `_prepare` sets the old one aside, so `_advance` reads both. The last
program of a head to finish (an integer counter, zeroed by `_prepare`) normalises its rows.
Contraction of multiply and add is off: absorbing a record and running its row give the same bits.
Nothing is compiled for a row count, and no tile depends on one.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.define import variant
from kernels.gated_delta_step.reference import MUTATES, fake
from kernels.gpu import INTERPRETED, SUPPORT, check, power_of_two, same_dtype
from kernels.rounding import log1p, rounded

COLUMNS = 32 if INTERPRETED else 16  # of the state, per program
ROW_GROUP = 4  # rows that the gated norm takes at a time


@triton.jit
def _silu(x):
    return x / (1.0 + tl.exp(-x))


@triton.jit
def _softplus(x):
    return tl.maximum(x, 0.0) + log1p(tl.exp(-tl.abs(x)))


@triton.jit
def _prepare(
    qkvz_ptr,
    ba_ptr,
    conv_ptr,
    a_log_ptr,
    dt_bias_ptr,
    tail_ptr,
    past_x_ptr,
    past_k_ptr,
    past_decay_ptr,
    pending_ptr,
    q_ptr,
    v_ptr,
    beta_ptr,
    old_k_ptr,
    old_decay_ptr,
    arrived_ptr,
    K_HEADS: tl.constexpr,
    V_HEADS: tl.constexpr,
    D_K: tl.constexpr,
    D_V: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    CHANNELS: tl.constexpr = 2 * K_HEADS * D_K + V_HEADS * D_V
    STRIDE: tl.constexpr = CHANNELS + V_HEADS * D_V
    dtype = qkvz_ptr.dtype.element_ty
    block = tl.program_id(0)  # a head of q, then of k, then of v
    i = tl.program_id(1)
    head = block - 2 * K_HEADS  # of v
    col = tl.arange(0, BLOCK)
    d = tl.where(head < 0, D_K, D_V)
    inside = col < d
    c = tl.where(head < 0, block * D_K, 2 * K_HEADS * D_K + head * D_V) + col
    pending = tl.load(pending_ptr).to(tl.int32)
    x = tl.zeros([BLOCK], tl.float32)
    for j in tl.static_range(WIDTH):
        t = i + j - (WIDTH - 1)  # a new row, or a pending one, or before that the tail
        p = pending + t
        before = tl.where(p >= 0, past_x_ptr + p * CHANNELS, tail_ptr + (p + WIDTH - 1) * CHANNELS)
        line = tl.where(t >= 0, qkvz_ptr + t * STRIDE, before)
        value = tl.load(line + c, mask=inside, other=0.0).to(tl.float32)
        x = x + tl.load(conv_ptr + c * WIDTH + j, mask=inside, other=0.0).to(tl.float32) * value
    x = rounded(_silu(rounded(x, dtype)), dtype)
    if head < 0:
        x = x * tl.rsqrt(tl.sum(x * x, axis=0) + 1e-6)
        if block < K_HEADS:
            tl.store(q_ptr + (i * K_HEADS + block) * D_K + col, x / D_K**0.5, mask=inside)
        else:
            place = (i * K_HEADS + block - K_HEADS) * D_K + col
            tl.store(old_k_ptr + place, tl.load(past_k_ptr + place, mask=inside), mask=inside)
            tl.store(past_k_ptr + place, x, mask=inside)
    else:
        tl.store(v_ptr + (i * V_HEADS + head) * D_V + col, x.to(dtype), mask=inside)
        b = tl.load(ba_ptr + i * 2 * V_HEADS + head).to(tl.float32)
        a = tl.load(ba_ptr + i * 2 * V_HEADS + V_HEADS + head).to(tl.float32)
        a = a + tl.load(dt_bias_ptr + head).to(tl.float32)
        g = -tl.exp(tl.load(a_log_ptr + head).to(tl.float32)) * _softplus(a)
        place = i * V_HEADS + head
        tl.store(old_decay_ptr + place, tl.load(past_decay_ptr + place))
        tl.store(past_decay_ptr + place, tl.exp(g))
        tl.store(beta_ptr + place, rounded(1.0 / (1.0 + tl.exp(-b)), dtype))
        if i == 0:
            tl.store(arrived_ptr + head, 0)


@triton.jit(do_not_specialize=["rows"])
def _advance(
    qkvz_ptr,
    norm_weight_ptr,
    h_ptr,
    tail_ptr,
    past_x_ptr,
    past_k_ptr,
    past_u_ptr,
    past_decay_ptr,
    pending_ptr,
    q_ptr,
    v_ptr,
    beta_ptr,
    old_k_ptr,
    old_decay_ptr,
    arrived_ptr,
    o_ptr,
    y_ptr,
    rows,
    eps,
    K_HEADS: tl.constexpr,
    V_HEADS: tl.constexpr,
    D_K: tl.constexpr,
    D_V: tl.constexpr,
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,
    MOVED: tl.constexpr,  # channels of tail and past_x that a program carries forward
    MAX_ROWS: tl.constexpr,
    ROW_GROUP: tl.constexpr,
):
    CHANNELS: tl.constexpr = 2 * K_HEADS * D_K + V_HEADS * D_V
    STRIDE: tl.constexpr = CHANNELS + V_HEADS * D_V
    PARTS: tl.constexpr = D_V // COLUMNS
    dtype = qkvz_ptr.dtype.element_ty
    part = tl.program_id(0)
    head = tl.program_id(1)
    k_head = head // (V_HEADS // K_HEADS)
    pending = tl.load(pending_ptr).to(tl.int32)
    k_row = tl.arange(0, D_K)
    col = part * COLUMNS + tl.arange(0, COLUMNS)
    tile = h_ptr + (head * D_K + k_row[:, None]) * D_V + col[None, :]
    s = tl.load(tile)

    c = (head * PARTS + part) * MOVED + tl.arange(0, MOVED)
    for j in tl.static_range(WIDTH - 1):
        w = pending + j  # tail[j] = (tail, past_x)[w]; no later j reads what is written here
        line = tl.where(
            w < WIDTH - 1, tail_ptr + w * CHANNELS, past_x_ptr + (w - WIDTH + 1) * CHANNELS
        )
        kept = tl.load(line + c, mask=c < CHANNELS)
        tl.store(tail_ptr + j * CHANNELS + c, kept, mask=c < CHANNELS)
    tl.debug_barrier()
    r = tl.arange(0, MAX_ROWS)[:, None]
    moved = (r < rows) & (c < CHANNELS)[None, :]
    x = tl.load(qkvz_ptr + r * STRIDE + c[None, :], mask=moved)
    tl.store(past_x_ptr + r * CHANNELS + c[None, :], x, mask=moved)

    for i in tl.range(0, pending, loop_unroll_factor=4):
        k_base = tl.where(i < rows, old_k_ptr, past_k_ptr)
        decay_base = tl.where(i < rows, old_decay_ptr, past_decay_ptr)
        k = tl.load(k_base + (i * K_HEADS + k_head) * D_K + k_row)
        u = tl.load(past_u_ptr + (i * V_HEADS + head) * D_V + col)
        s = s * tl.load(decay_base + i * V_HEADS + head)
        s = s + k[:, None] * u[None, :]
    if pending > 0:
        tl.store(tile, s)
    tl.debug_barrier()  # every pending u is read before a new one is written

    k_from, v_from = k_head * D_K + k_row, head * D_V + col
    K_STEP: tl.constexpr = K_HEADS * D_K
    V_STEP: tl.constexpr = V_HEADS * D_V
    k, q = tl.load(past_k_ptr + k_from), tl.load(q_ptr + k_from)
    v = tl.load(v_ptr + v_from)
    decay, beta = tl.load(past_decay_ptr + head), tl.load(beta_ptr + head)
    for i in range(rows):
        n = tl.minimum(i + 1, rows - 1)  # the next row's inputs are under way during this one
        next_k = tl.load(past_k_ptr + n * K_STEP + k_from)
        next_q = tl.load(q_ptr + n * K_STEP + k_from)
        next_v = tl.load(v_ptr + n * V_STEP + v_from)
        next_decay = tl.load(past_decay_ptr + n * V_HEADS + head)
        next_beta = tl.load(beta_ptr + n * V_HEADS + head)
        s = s * decay
        u = (v.to(tl.float32) - tl.sum(s * k[:, None], axis=0)) * beta
        s = s + k[:, None] * u[None, :]
        o = rounded(tl.sum(s * q[:, None], axis=0), dtype)
        tl.store(past_u_ptr + i * V_STEP + v_from, u)
        tl.store(o_ptr + i * V_STEP + v_from, o.to(dtype))
        k, q, v, decay, beta = next_k, next_q, next_v, next_decay, next_beta

    tl.debug_barrier()  # all of this program's o before its arrival
    if tl.atomic_add(arrived_ptr + head, 1, sem="acq_rel") == PARTS - 1:
        d = tl.arange(0, D_V)[None, :]
        weight = tl.load(norm_weight_ptr + d).to(tl.float32)
        for start in range(0, rows, ROW_GROUP):
            n = start + tl.arange(0, ROW_GROUP)[:, None]
            live = (n < rows) & (d >= 0)
            span = (n * V_HEADS + head) * D_V + d
            o = tl.load(o_ptr + span, mask=live, other=0.0, cache_modifier=".cg").to(tl.float32)
            z = tl.load(qkvz_ptr + n * STRIDE + CHANNELS + head * D_V + d, mask=live, other=0.0)
            o = o * tl.rsqrt(tl.sum(o * o, axis=1) / D_V + eps)[:, None]
            o = rounded(weight * rounded(o, dtype), dtype)
            y = rounded(o * _silu(z.to(tl.float32)), dtype)
            tl.store(y_ptr + span, y.to(dtype), mask=live)


@variant("gated_delta_step", "triton", fake, MUTATES, SUPPORT)
def gated_delta_step(
    qkvz: Tensor,
    ba: Tensor,
    conv_weight: Tensor,
    a_log: Tensor,
    dt_bias: Tensor,
    norm_weight: Tensor,
    h: Tensor,
    tail: Tensor,
    past_x: Tensor,
    past_k: Tensor,
    past_u: Tensor,
    past_decay: Tensor,
    pending: Tensor,
    eps: float,
) -> Tensor:
    """As the reference, for 1 to 16 rows; head widths must be powers of two from 16 on."""
    v_heads, d_k, d_v = h.shape
    k_heads, rows, width = past_k.shape[1], qkvz.shape[0], conv_weight.shape[1]
    records = {"past_x": past_x, "past_k": past_k, "past_u": past_u, "past_decay": past_decay}
    named = {"qkvz": qkvz, "conv_weight": conv_weight, "norm_weight": norm_weight, "tail": tail}
    check("gated_delta_step", rows, ba=ba, h=h, **named, **records)
    same_dtype("gated_delta_step", ba=ba, past_x=past_x, **named)
    if any(d < 16 or d & (d - 1) for d in (d_k, d_v)):
        raise ValueError(
            "gated_delta_step: triton needs head widths that are powers of two from 16 on, got"
            f" {d_k} and {d_v}; use kernel.gated_delta_step=reference"
        )
    if rows > past_x.shape[0]:
        raise ValueError(f"gated_delta_step: {rows} rows, but records of {past_x.shape[0]}")
    fp32 = h.new_empty
    q, old_k = fp32(rows, k_heads, d_k), fp32(rows, k_heads, d_k)
    beta, old_decay = fp32(rows, v_heads), fp32(rows, v_heads)
    v, o, y = (qkvz.new_empty(rows, v_heads * d_v) for _ in range(3))
    arrived = pending.new_empty(v_heads, dtype=torch.int32)
    shape = {"K_HEADS": k_heads, "V_HEADS": v_heads, "D_K": d_k, "D_V": d_v, "WIDTH": width}
    between = (q, v, beta, old_k, old_decay, arrived)
    _prepare[(2 * k_heads + v_heads, rows)](
        qkvz,
        ba,
        conv_weight,
        a_log,
        dt_bias,
        tail,
        past_x,
        past_k,
        past_decay,
        pending,
        *between,
        **shape,
        BLOCK=max(d_k, d_v),
        num_warps=1,
        enable_fp_fusion=False,
    )
    columns = min(COLUMNS, d_v)
    parts = d_v // columns
    _advance[(parts, v_heads)](
        qkvz,
        norm_weight,
        h,
        tail,
        past_x,
        past_k,
        past_u,
        past_decay,
        pending,
        *between,
        o,
        y,
        rows,
        eps,
        **shape,
        COLUMNS=columns,
        MOVED=power_of_two(-(-conv_weight.shape[0] // (parts * v_heads))),
        MAX_ROWS=16,
        ROW_GROUP=ROW_GROUP,
        num_warps=4,
        enable_fp_fusion=False,
    )
    return y
