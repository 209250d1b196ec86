"""One launch: a program owns a block of columns of one value head's state, from inputs to rows.

Before the recurrence it makes ready what that reads, several rows at a time: q, k, v and gates of
the call's rows, and the records to absorb, one line of fp32 scratch each. The loops over rows then
hold nothing but the state's own arithmetic, each loading the next line during this one:

    d = s^T k;  e = s^T q;  u = beta (v - decay d);  o = decay e + (q . k) u;  s = s decay + k u^T

The state is a few tiles of rows, so that sums over d_k run along tiles, by fused multiply-adds,
before they cross threads. Absorbing a record and running its row give the same bits: both write the
one fused multiply-add out, and contraction is off elsewhere.

Records, tail and gates are read by every program of a key head and overwritten in the same call,
so nothing shared is written before all have read. One integer counter per key head tells, in a
field for each of its value heads: the last program of a value head normalises its rows, the last of
the key head moves the records and leaves the counter at zero.
Nothing is compiled for a row count, and no tile depends on one.
"""

from dataclasses import replace

import triton
import triton.language as tl
from torch import Tensor

from kernels.define import MAX_ROWS, variant
from kernels.gated_delta_step.launch import check_inputs
from kernels.gated_delta_step.reference import MUTATES, fake
from kernels.gpu import (
    INTERPRETED,
    SUPPORT,
    counters,
    dependent_launch,
    let_next_start,
    wait_for_inputs,
)
from kernels.rounding import rounded, silu, softplus

COLUMNS = 32  # of the state, per program
WARPS = 4
TILE = 32  # rows of the state in one of its tiles
ROW_GROUP = 4 if INTERPRETED else 8  # rows that are made ready at a time
NORM_ROWS = 4 if INTERPRETED else 8  # rows that are normalised at a time


@triton.jit
def _unit(x):
    return x * tl.rsqrt(tl.sum(x * x, axis=1) + 1e-6)[:, None]


@triton.jit
def _taps(conv_ptr, channel, WIDTH: tl.constexpr):
    taps = ()
    for j in tl.static_range(WIDTH):
        taps = taps + (tl.load(conv_ptr + channel * WIDTH + j),)
    return taps


@triton.jit
def _wide(taps, WIDTH: tl.constexpr):
    wide = ()
    for j in tl.static_range(WIDTH):
        wide = wide + (taps[j].to(tl.float32)[None, :],)
    return wide


@triton.jit
def _before(tail_ptr, past_x_ptr, w, CHANNELS: tl.constexpr, WIDTH: tl.constexpr):
    """Where the convolution's input w stands that is older than the new rows; 0 is the tail's."""
    record = past_x_ptr + (w - WIDTH + 1) * CHANNELS
    return tl.where(w < WIDTH - 1, tail_ptr + w * CHANNELS, record)


@triton.jit
def _inputs(line, channel):
    """fp32 [rows, channels] at lines [rows, 1]; chosen pointers say nothing of runs by themselves.

    Whole heads start at 16 bytes.
    """
    RUN: tl.constexpr = channel.shape[0]
    at = tl.max_contiguous(line + channel[None, :], [1, RUN])
    return tl.load(tl.multiple_of(at, [16, 16])).to(tl.float32)


@triton.jit
def _conv(lines, channel, taps, WIDTH: tl.constexpr):
    """silu(conv) of inputs at `lines`, WIDTH of [rows, 1], both rounded; fp32 [rows, channels]."""
    dtype = lines[0].dtype.element_ty
    y = taps[0] * _inputs(lines[0], channel)
    for j in tl.static_range(1, WIDTH):
        y = y + taps[j] * _inputs(lines[j], channel)
    return rounded(silu(rounded(y, dtype)), dtype)


@triton.jit
def _pieces(ptr, D_K: tl.constexpr, TILE: tl.constexpr):
    """A vector of d_k values, as the state's tiles meet it."""
    pieces = ()
    for t in tl.static_range(D_K // TILE):
        pieces = pieces + (tl.load(ptr + t * TILE + tl.arange(0, TILE)),)
    return pieces


@triton.jit
def _dot(tiles, pieces, TILES: tl.constexpr):
    """sum_k s[k, :] p[k] along the tiles: [rows of a tile, columns], still to be summed."""
    y = tiles[0] * pieces[0][:, None]
    for t in tl.static_range(1, TILES):
        y = tl.fma(tiles[t], tl.broadcast_to(pieces[t][:, None], y.shape), y)
    return y


@triton.jit
def _decayed(tiles, k, u, decay, TILES: tl.constexpr):
    """s * decay + k u^T, the product of decay rounded, the rest at once."""
    after = ()
    for t in tl.static_range(TILES):
        s = tiles[t] * decay
        pair = tl.broadcast_to(k[t][:, None], s.shape), tl.broadcast_to(u[None, :], s.shape)
        after = after + (tl.fma(pair[0], pair[1], s),)
    return after


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
    NORM_ROWS: tl.constexpr,
):
    """y = rms_norm_plain(o) * weight * silu(z) for all rows of a head, whose o others wrote."""
    dtype = y_ptr.dtype.element_ty
    d = tl.arange(0, D_V)[None, :]
    weight = tl.load(weight_ptr + d).to(tl.float32)
    for start in range(0, rows, NORM_ROWS):
        row = start + tl.arange(0, NORM_ROWS)[:, None]
        live = (row < rows) & (d >= 0)
        span = (row * V_HEADS + head) * D_V + d
        o = tl.load(o_ptr + span, mask=live, other=0.0, cache_modifier=".cg")
        z = tl.load(z_ptr + row * STRIDE + head * D_V + d, mask=live, other=0.0).to(tl.float32)
        o = o * tl.rsqrt(tl.sum(o * o, axis=1) / D_V + eps)[:, None]
        y = rounded(weight * rounded(o, dtype), dtype) * silu(z)
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
    lines_ptr,
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
    TILE: tl.constexpr,
    LINE: tl.constexpr,
    FIELD: tl.constexpr,
    MAX_ROWS: tl.constexpr,
    ROW_GROUP: tl.constexpr,
    NORM_ROWS: tl.constexpr,
    PDL: tl.constexpr,
):
    GROUP: tl.constexpr = V_HEADS // K_HEADS
    CHANNELS: tl.constexpr = 2 * K_HEADS * D_K + V_HEADS * D_V
    STRIDE: tl.constexpr = CHANNELS + V_HEADS * D_V
    PARTS: tl.constexpr = D_V // COLUMNS
    TILES: tl.constexpr = D_K // TILE
    V: tl.constexpr = 2 * D_K  # a line: k, q, v or u, then decay, beta and q . k
    GATES: tl.constexpr = V + COLUMNS
    FULL: tl.constexpr = (1 << FIELD) - 1  # a field's mask; PARTS in every field is all arrived
    ALL: tl.constexpr = PARTS * (((1 << (FIELD * GROUP)) - 1) // FULL)
    dtype = qkvz_ptr.dtype.element_ty
    part = tl.program_id(0)
    head = tl.program_id(1)
    k_head = head // GROUP
    k_row = tl.arange(0, D_K)
    col = part * COLUMNS + tl.arange(0, COLUMNS)
    q_at = k_head * D_K + k_row  # channels of q, k and v
    k_at = K_HEADS * D_K + q_at
    v_at = 2 * K_HEADS * D_K + head * D_V + col
    let_next_start(PDL)
    q_taps = _taps(conv_ptr, q_at, WIDTH)
    k_taps = _taps(conv_ptr, k_at, WIDTH)
    v_taps = _taps(conv_ptr, v_at, WIDTH)
    rate = -tl.exp(tl.load(a_log_ptr + head).to(tl.float32))
    dt_bias = tl.load(dt_bias_ptr + head).to(tl.float32)
    q_taps, k_taps = _wide(q_taps, WIDTH), _wide(k_taps, WIDTH)  # once all are under way
    v_taps = _wide(v_taps, WIDTH)
    wait_for_inputs(PDL)

    pending = tl.load(pending_ptr).to(tl.int32)
    place = tl.arange(0, TILE)[:, None] * D_V + col[None, :]
    tiles = ()
    for t in tl.static_range(TILES):
        tiles = tiles + (tl.load(h_ptr + (head * D_K + t * TILE) * D_V + place),)
    tl.debug_barrier()  # the state is under way before anything waits for `pending`
    past_ptr = lines_ptr + (head * PARTS + part) * 2 * MAX_ROWS * LINE
    new_ptr = past_ptr + MAX_ROWS * LINE
    r = tl.arange(0, MAX_ROWS)
    row = r[:, None]
    folded = (row < pending) & (k_row >= 0)[None, :]
    own = (row < pending) & (col >= 0)[None, :]
    ks = tl.load(past_k_ptr + row * K_HEADS * D_K + q_at[None, :], mask=folded)
    us = tl.load(past_u_ptr + (row * V_HEADS + head) * D_V + col[None, :], mask=own)
    decays = tl.load(past_decay_ptr + r * V_HEADS + head, mask=r < pending)

    for start in range(0, rows, ROW_GROUP):
        i = start + tl.arange(0, ROW_GROUP)
        at = tl.minimum(i, rows - 1)
        lines = ()
        for j in tl.static_range(WIDTH):
            x = at[:, None] + (j - WIDTH + 1)
            older = _before(tail_ptr, past_x_ptr, x + pending + (WIDTH - 1), CHANNELS, WIDTH)
            lines = lines + (tl.where(x < 0, older, qkvz_ptr + x * STRIDE),)
        b = tl.load(ba_ptr + at * 2 * V_HEADS + head).to(tl.float32)
        a = tl.load(ba_ptr + at * 2 * V_HEADS + V_HEADS + head).to(tl.float32)
        k_new = _unit(_conv(lines, k_at, k_taps, WIDTH))
        q_new = _unit(_conv(lines, q_at, q_taps, WIDTH)) / D_K**0.5
        v_new = _conv(lines, v_at, v_taps, WIDTH)
        slot = new_ptr + i * LINE
        live = i < rows
        wide = live[:, None] & (k_row >= 0)[None, :]
        tl.store(slot[:, None] + k_row[None, :], k_new, mask=wide)
        tl.store(slot[:, None] + (D_K + k_row)[None, :], q_new, mask=wide)
        at_v = slot[:, None] + (V + tl.arange(0, COLUMNS))[None, :]
        tl.store(at_v, v_new, mask=live[:, None] & (col >= 0)[None, :])
        tl.store(slot + GATES, tl.exp(rate * softplus(a + dt_bias)), mask=live)
        tl.store(slot + GATES + 1, rounded(1.0 / (1.0 + tl.exp(-b)), dtype), mask=live)
        tl.store(slot + GATES + 2, tl.sum(q_new * k_new, axis=1), mask=live)
    v_tail = ()
    for j in tl.static_range(WIDTH - 1):
        old = _before(tail_ptr, past_x_ptr, pending + j, CHANNELS, WIDTH)
        v_tail = v_tail + (tl.load(old + v_at),)
    inputs = (row < rows) & (col >= 0)[None, :]
    new_v = tl.load(qkvz_ptr + row * STRIDE + v_at[None, :], mask=inputs)
    records = past_ptr + row * LINE
    tl.store(records + k_row[None, :], ks, mask=folded)
    tl.store(records + (V + tl.arange(0, COLUMNS))[None, :], us, mask=own)
    tl.store(past_ptr + r * LINE + GATES, decays, mask=r < pending)
    tl.debug_barrier()  # lines are ready; what this program alone overwrites, it has read

    local = tl.arange(0, COLUMNS)
    for i in tl.range(0, pending, loop_unroll_factor=4):
        line = past_ptr + i * LINE
        u, decay = tl.load(line + V + local), tl.load(line + GATES)
        tiles = _decayed(tiles, _pieces(line, D_K, TILE), u, decay, TILES)
    if pending > 0:
        for t in tl.static_range(TILES):
            tl.store(h_ptr + (head * D_K + t * TILE) * D_V + place, tiles[t])
        for j in tl.static_range(WIDTH - 1):
            tl.store(tail_ptr + j * CHANNELS + v_at, v_tail[j])
    tl.store(past_x_ptr + row * CHANNELS + v_at[None, :], new_v, mask=inputs)

    k = _pieces(new_ptr, D_K, TILE)
    q = _pieces(new_ptr + D_K, D_K, TILE)
    v, decay = tl.load(new_ptr + V + local), tl.load(new_ptr + GATES)
    beta, qk = tl.load(new_ptr + GATES + 1), tl.load(new_ptr + GATES + 2)
    lane = tl.arange(0, TILE)[:, None]  # u and o leave from the tiles' own layout, one row of it
    once = (lane == 0) & (col >= 0)[None, :]
    for i in range(rows):
        line = new_ptr + tl.minimum(i + 1, rows - 1) * LINE
        next_k = _pieces(line, D_K, TILE)
        next_q = _pieces(line + D_K, D_K, TILE)
        next_v, next_decay = tl.load(line + V + local), tl.load(line + GATES)
        next_beta, next_qk = tl.load(line + GATES + 1), tl.load(line + GATES + 2)
        both = tl.join(_dot(tiles, k, TILES), _dot(tiles, q, TILES))
        d, e = tl.split(tl.sum(both, axis=0))
        u = (v - decay * d) * beta
        o = decay * e + qk * u
        tiles = _decayed(tiles, k, u, decay, TILES)
        out = (i * V_HEADS + head) * D_V + col[None, :] + 0 * lane
        tl.store(past_u_ptr + out, tl.broadcast_to(u[None, :], out.shape), mask=once)
        o = tl.broadcast_to(rounded(o, dtype)[None, :], out.shape)
        tl.store(o_ptr + out, o, mask=once)
        k, q, v, decay, beta, qk = next_k, next_q, next_v, next_decay, next_beta, next_qk

    tl.debug_barrier()  # all that this program reads and writes, before its arrival
    shift = (head % GROUP) * FIELD
    before = tl.atomic_add(arrived_ptr + k_head, 1 << shift, sem="acq_rel")
    if ((before >> shift) & FULL) == PARTS - 1:
        z_ptr = qkvz_ptr + CHANNELS
        _norm(
            o_ptr, z_ptr, norm_weight_ptr, y_ptr, head, rows, eps, V_HEADS, D_V, STRIDE, NORM_ROWS
        )
        decays = tl.load(new_ptr + r * LINE + GATES, mask=r < rows)
        tl.store(past_decay_ptr + r * V_HEADS + head, decays, mask=r < rows)
        if before + (1 << shift) == ALL:
            tl.store(arrived_ptr + k_head, 0)
            q_tail, k_tail = (), ()
            for j in tl.static_range(WIDTH - 1):
                line = _before(tail_ptr, past_x_ptr, pending + j, CHANNELS, WIDTH)
                q_tail, k_tail = q_tail + (tl.load(line + q_at),), k_tail + (tl.load(line + k_at),)
            tl.debug_barrier()  # every old input is read before a new one is written
            for j in tl.static_range(WIDTH - 1):
                tl.store(tail_ptr + j * CHANNELS + q_at, q_tail[j])
                tl.store(tail_ptr + j * CHANNELS + k_at, k_tail[j])
            live = (row < rows) & (k_row >= 0)[None, :]
            new_q = tl.load(qkvz_ptr + row * STRIDE + q_at[None, :], mask=live)
            new_k = tl.load(qkvz_ptr + row * STRIDE + k_at[None, :], mask=live)
            unit = tl.load(new_ptr + row * LINE + k_row[None, :], mask=live)
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
    check_inputs(
        qkvz=qkvz,
        ba=ba,
        conv_weight=conv_weight,
        norm_weight=norm_weight,
        h=h,
        tail=tail,
        past_x=past_x,
        past_k=past_k,
        past_u=past_u,
        past_decay=past_decay,
    )
    if any(d < 16 or d & (d - 1) for d in (d_k, d_v)):
        raise ValueError(
            "gated_delta_step: triton needs head widths that are powers of two from 16 on, got"
            f" {d_k} and {d_v}; use kernel.gated_delta_step=reference"
        )
    group = v_heads // k_heads
    columns, tile = min(COLUMNS, d_v), min(TILE, d_k)
    parts = d_v // columns
    field = parts.bit_length()
    if group * field > 31:
        raise ValueError(
            f"gated_delta_step: triton counts at most {31 // field} value heads to a key head, got"
            f" {group}; use kernel.gated_delta_step=reference"
        )
    line = 2 * d_k + columns + 16
    lines = h.new_empty(v_heads * parts, 2 * MAX_ROWS, line)
    o = h.new_empty(rows, v_heads * d_v)
    y = qkvz.new_empty(rows, v_heads * d_v)
    overlap = dependent_launch(h.device)
    _gated_delta_step[(parts, v_heads)](
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
        lines,
        o,
        y,
        counters(h.device, k_heads),
        rows,
        eps,
        K_HEADS=k_heads,
        V_HEADS=v_heads,
        D_K=d_k,
        D_V=d_v,
        WIDTH=width,
        COLUMNS=columns,
        TILE=tile,
        LINE=line,
        FIELD=field,
        MAX_ROWS=MAX_ROWS,
        ROW_GROUP=ROW_GROUP,
        NORM_ROWS=NORM_ROWS,
        PDL=overlap,
        num_warps=WARPS,
        enable_fp_fusion=False,
        launch_pdl=overlap,
    )
    return y
