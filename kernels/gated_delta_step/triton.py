"""One launch: a program owns a block of columns of one value head's state, from inputs to rows.

It absorbs, stores the checkpoint, then runs the rows, each time making the row's q and k anew: its
neighbours of the same key head (24 with 16 columns each) do the same, which costs less than a
second launch. A program is one warp, so that no sum over d_k has to cross warps.

Records, tail and gates are read by every program of a key head and overwritten in the same call,
so nothing shared is written before all have read. Integer counters tell: the last program of a
value head to finish normalises its rows, the last value head of a key head moves the records, and
each leaves its counter at zero.
Contraction of multiply and add is off: absorbing a record and running its row give the same bits.
Nothing is compiled for a row count, and no tile depends on one.
"""

from dataclasses import replace

import triton
import triton.language as tl
from torch import Tensor

from kernels.define import MAX_ROWS, variant
from kernels.gated_delta_step.reference import MUTATES, fake
from kernels.gpu import INTERPRETED, SUPPORT, check, counters, same_dtype
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
def _unit(x):
    return x * tl.rsqrt(tl.sum(x * x, axis=0) + 1e-6)


@triton.jit
def _taps(conv_ptr, channel, WIDTH: tl.constexpr):
    taps = ()
    for j in tl.static_range(WIDTH):
        taps = taps + (tl.load(conv_ptr + channel * WIDTH + j).to(tl.float32),)
    return taps


@triton.jit
def _window(tail_ptr, past_x_ptr, channel, pending, CHANNELS: tl.constexpr, WIDTH: tl.constexpr):
    """The WIDTH - 1 inputs before the new rows, which the tail becomes."""
    window = ()
    for j in tl.static_range(WIDTH - 1):
        w = pending + j
        record = past_x_ptr + (w - WIDTH + 1) * CHANNELS
        line = tl.where(w < WIDTH - 1, tail_ptr + w * CHANNELS, record)
        window = window + (tl.load(line + channel),)
    return window


@triton.jit
def _conv(window, x, taps, WIDTH: tl.constexpr):
    """silu(conv) where the window's next input is x, both rounded; fp32."""
    y = taps[0] * window[0].to(tl.float32)
    for j in tl.static_range(1, WIDTH - 1):
        y = y + taps[j] * window[j].to(tl.float32)
    y = y + taps[WIDTH - 1] * x.to(tl.float32)
    return rounded(_silu(rounded(y, x.dtype)), x.dtype)


@triton.jit
def _slide(window, x, WIDTH: tl.constexpr):
    after = ()
    for j in tl.static_range(1, WIDTH - 1):
        after = after + (window[j],)
    return after + (x,)


@triton.jit
def _norm(
    o_ptr,
    z_ptr,
    weight_ptr,
    y_ptr,
    head,
    rows,
    eps,
    V_HEADS: tl.constexpr,
    D_V: tl.constexpr,
    STRIDE: tl.constexpr,
    ROW_GROUP: tl.constexpr,
):
    """y = rms_norm_plain(o) * weight * silu(z) for all rows of a head, whose o others wrote."""
    dtype = y_ptr.dtype.element_ty
    d = tl.arange(0, D_V)[None, :]
    weight = tl.load(weight_ptr + d).to(tl.float32)
    for start in range(0, rows, ROW_GROUP):
        row = start + tl.arange(0, ROW_GROUP)[:, None]
        live = (row < rows) & (d >= 0)
        span = (row * V_HEADS + head) * D_V + d
        o = tl.load(o_ptr + span, mask=live, other=0.0, cache_modifier=".cg").to(tl.float32)
        z = tl.load(z_ptr + row * STRIDE + head * D_V + d, mask=live, other=0.0).to(tl.float32)
        o = o * tl.rsqrt(tl.sum(o * o, axis=1) / D_V + eps)[:, None]
        y = rounded(weight * rounded(o, dtype), dtype) * _silu(z)
        tl.store(y_ptr + span, rounded(y, dtype).to(dtype), mask=live)


@triton.jit(do_not_specialize=["rows"])
def _gated_delta_step(
    qkvz_ptr,
    ba_ptr,
    conv_ptr,
    a_log_ptr,
    dt_bias_ptr,
    norm_weight_ptr,
    h_ptr,
    tail_ptr,
    past_x_ptr,
    past_k_ptr,
    past_u_ptr,
    past_decay_ptr,
    pending_ptr,
    new_k_ptr,
    new_decay_ptr,
    o_ptr,
    y_ptr,
    arrived_ptr,
    rows,
    eps,
    K_HEADS: tl.constexpr,
    V_HEADS: tl.constexpr,
    D_K: tl.constexpr,
    D_V: tl.constexpr,
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,
    MAX_ROWS: tl.constexpr,
    ROW_GROUP: tl.constexpr,
):
    GROUP: tl.constexpr = V_HEADS // K_HEADS
    CHANNELS: tl.constexpr = 2 * K_HEADS * D_K + V_HEADS * D_V
    STRIDE: tl.constexpr = CHANNELS + V_HEADS * D_V
    PARTS: tl.constexpr = D_V // COLUMNS
    dtype = qkvz_ptr.dtype.element_ty
    part = tl.program_id(0)
    head = tl.program_id(1)
    k_head = head // GROUP
    pending = tl.load(pending_ptr).to(tl.int32)
    k_row = tl.arange(0, D_K)
    col = part * COLUMNS + tl.arange(0, COLUMNS)
    tile = h_ptr + (head * D_K + k_row[:, None]) * D_V + col[None, :]
    s = tl.load(tile)

    q_at = k_head * D_K + k_row  # channels of q, k and v
    k_at = K_HEADS * D_K + q_at
    v_at = 2 * K_HEADS * D_K + head * D_V + col
    q_taps = _taps(conv_ptr, q_at, WIDTH)
    k_taps = _taps(conv_ptr, k_at, WIDTH)
    v_taps = _taps(conv_ptr, v_at, WIDTH)
    q_window = _window(tail_ptr, past_x_ptr, q_at, pending, CHANNELS, WIDTH)
    k_window = _window(tail_ptr, past_x_ptr, k_at, pending, CHANNELS, WIDTH)
    v_window = _window(tail_ptr, past_x_ptr, v_at, pending, CHANNELS, WIDTH)
    rate = -tl.exp(tl.load(a_log_ptr + head).to(tl.float32))
    dt_bias = tl.load(dt_bias_ptr + head).to(tl.float32)
    x_q, x_k, x_v = (tl.load(qkvz_ptr + q_at), tl.load(qkvz_ptr + k_at), tl.load(qkvz_ptr + v_at))
    b, a = tl.load(ba_ptr + head), tl.load(ba_ptr + V_HEADS + head)

    for i in tl.range(0, pending, loop_unroll_factor=4):
        k = tl.load(past_k_ptr + (i * K_HEADS + k_head) * D_K + k_row)
        u = tl.load(past_u_ptr + (i * V_HEADS + head) * D_V + col)
        s = s * tl.load(past_decay_ptr + i * V_HEADS + head)
        s = s + k[:, None] * u[None, :]
    tl.debug_barrier()  # this program has read what it alone overwrites: its h, u and inputs of v
    if pending > 0:
        tl.store(tile, s)
        for j in tl.static_range(WIDTH - 1):
            tl.store(tail_ptr + j * CHANNELS + v_at, v_window[j])

    for i in range(rows):
        n = tl.minimum(i + 1, rows - 1)  # the next row's inputs are under way during this one
        next_q = tl.load(qkvz_ptr + n * STRIDE + q_at)
        next_k = tl.load(qkvz_ptr + n * STRIDE + k_at)
        next_v = tl.load(qkvz_ptr + n * STRIDE + v_at)
        next_b = tl.load(ba_ptr + n * 2 * V_HEADS + head)
        next_a = tl.load(ba_ptr + n * 2 * V_HEADS + V_HEADS + head)
        k = _unit(_conv(k_window, x_k, k_taps, WIDTH))
        q = _unit(_conv(q_window, x_q, q_taps, WIDTH)) / D_K**0.5
        v = _conv(v_window, x_v, v_taps, WIDTH)
        decay = tl.exp(rate * _softplus(a.to(tl.float32) + dt_bias))
        beta = rounded(1.0 / (1.0 + tl.exp(-b.to(tl.float32))), dtype)
        s = s * decay
        u = (v - tl.sum(s * k[:, None], axis=0)) * beta
        s = s + k[:, None] * u[None, :]
        o = rounded(tl.sum(s * q[:, None], axis=0), dtype)
        place = i * V_HEADS + head
        tl.store(past_x_ptr + i * CHANNELS + v_at, x_v)
        tl.store(past_u_ptr + place * D_V + col, u)
        tl.store(o_ptr + place * D_V + col, o.to(dtype))
        tl.store(new_k_ptr + place * D_K + k_row, k, mask=k_row < tl.where(part == 0, D_K, 0))
        tl.store(new_decay_ptr + place, decay, mask=part == 0)
        q_window = _slide(q_window, x_q, WIDTH)
        k_window = _slide(k_window, x_k, WIDTH)
        v_window = _slide(v_window, x_v, WIDTH)
        x_q, x_k, x_v, b, a = next_q, next_k, next_v, next_b, next_a

    tl.debug_barrier()  # all that this program reads and writes, before its arrival
    if tl.atomic_add(arrived_ptr + head, 1, sem="acq_rel") == PARTS - 1:
        tl.store(arrived_ptr + head, 0)
        heads_done = tl.atomic_add(arrived_ptr + V_HEADS + k_head, 1, sem="acq_rel") + 1
        z_ptr = qkvz_ptr + CHANNELS
        _norm(
            o_ptr, z_ptr, norm_weight_ptr, y_ptr, head, rows, eps, V_HEADS, D_V, STRIDE, ROW_GROUP
        )
        r = tl.arange(0, MAX_ROWS)
        at = r * V_HEADS + head
        decays = tl.load(new_decay_ptr + at, mask=r < rows, cache_modifier=".cg")
        tl.store(past_decay_ptr + at, decays, mask=r < rows)
        if heads_done == GROUP:
            tl.store(arrived_ptr + V_HEADS + k_head, 0)
            q_tail = _window(tail_ptr, past_x_ptr, q_at, pending, CHANNELS, WIDTH)
            k_tail = _window(tail_ptr, past_x_ptr, k_at, pending, CHANNELS, WIDTH)
            tl.debug_barrier()  # every old input is read before a new one is written
            for j in tl.static_range(WIDTH - 1):
                tl.store(tail_ptr + j * CHANNELS + q_at, q_tail[j])
                tl.store(tail_ptr + j * CHANNELS + k_at, k_tail[j])
            row = r[:, None]
            live = (row < rows) & (k_row >= 0)[None, :]
            new_q = tl.load(qkvz_ptr + row * STRIDE + q_at[None, :], mask=live)
            new_k = tl.load(qkvz_ptr + row * STRIDE + k_at[None, :], mask=live)
            unit = new_k_ptr + (row * V_HEADS + head) * D_K + k_row[None, :]
            unit = tl.load(unit, mask=live, cache_modifier=".cg")
            tl.store(past_x_ptr + row * CHANNELS + q_at[None, :], new_q, mask=live)
            tl.store(past_x_ptr + row * CHANNELS + k_at[None, :], new_k, mask=live)
            tl.store(past_k_ptr + row * K_HEADS * D_K + q_at[None, :], unit, mask=live)


@variant(
    "gated_delta_step",
    "triton",
    fake,
    MUTATES,
    replace(SUPPORT, powers={"d_k": 16, "d_v": 16}),
)
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
    new_k = h.new_empty(rows, v_heads, d_k)
    new_decay = h.new_empty(rows, v_heads)
    o, y = (qkvz.new_empty(rows, v_heads * d_v) for _ in range(2))
    columns = min(COLUMNS, d_v)
    _gated_delta_step[(d_v // columns, v_heads)](
        qkvz,
        ba,
        conv_weight,
        a_log,
        dt_bias,
        norm_weight,
        h,
        tail,
        past_x,
        past_k,
        past_u,
        past_decay,
        pending,
        new_k,
        new_decay,
        o,
        y,
        counters(h.device, v_heads + k_heads),
        rows,
        eps,
        K_HEADS=k_heads,
        V_HEADS=v_heads,
        D_K=d_k,
        D_V=d_v,
        WIDTH=width,
        COLUMNS=columns,
        MAX_ROWS=MAX_ROWS,
        ROW_GROUP=ROW_GROUP,
        num_warps=1,
        enable_fp_fusion=False,
    )
    return y
