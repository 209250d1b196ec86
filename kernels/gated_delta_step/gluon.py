"""One launch for Hopper: a program owns 64 columns of one value head's state, in registers.

As triton.py, with the keys of a column inside one warp, so that the loop over rows has no barrier:

    d = s^T k;  e = s^T q;  u = beta v - beta decay d;  o = decay e + (q . k) u
    s = s decay + k u^T

What the loops read stands ready in shared memory: k and q of unit length, beta v, gates, records
to absorb. A row is made ready by one warp and its sums run in the order of that warp's lanes; the
state's sums run along its tiles by fused multiply-adds, then along four keys, then across lanes.
Absorbing a record and running its row give the same bits: both write the one fused multiply-add
out, and contraction is off elsewhere. Nothing is compiled for a row count.

Programs of a value head tell each other, for each row, the sum of squares over their columns: one
64-bit word each that is zero until it is written, and zero again once it is read.
Records and tail of q and k are read by every program of a key head and overwritten in the same
call: programs count themselves once they have read, the last of a key head moves the records.
"""

import triton.language as tl
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from kernels.define import MAX_ROWS, Support, variant
from kernels.gated_delta_step.launch import check_inputs
from kernels.gated_delta_step.reference import MUTATES, fake
from kernels.gluon_names import viewed
from kernels.gpu import (
    counters,
    dependent_launch,
    let_next_start,
    wait_for_inputs,
)
from kernels.rounding import rounded, rounded_pairs, softplus

HEADS = 64, 128  # widths of a head, of keys as of values
TAPS = 4
COLUMNS = 64  # of the state, per program
WARPS = 8
ACROSS = 4  # lanes that share a column
ROW_GROUP = 16  # rows that are made ready at a time
SUPPORT = Support(
    devices=("cuda",),
    capability=(9, 0),
    below=(10, 0),
    powers={"d_k": min(HEADS), "d_v": min(HEADS)},
    most={"d_k": max(HEADS), "d_v": max(HEADS)},
)


# two words of bf16 to fp32
_WIDE = gl.constexpr("shl.b32 $0, $2, 16; and.b32 $1, $2, 0xffff0000;")


@gluon.jit
def _wide(x):
    if x.dtype == gl.bfloat16:
        return gl.inline_asm_elementwise(_WIDE, "=&r,=r,r", [x], gl.float32, True, 2)
    else:
        return x.to(gl.float32)


@gluon.jit
def _sigmoid(x):
    """1 / (1 + exp(-x)), of numbers whose exponential is no subnormal one."""
    power = gl.inline_asm_elementwise(
        "ex2.approx.ftz.f32 $0, $1;", "=f,f", [x * -1.4426950408889634], gl.float32, True, 1
    )
    return gl.inline_asm_elementwise(
        "rcp.approx.ftz.f32 $0, $1;", "=f,f", [1.0 + power], gl.float32, True, 1
    )


@gluon.jit
def _view(memory, shape: gl.constexpr, layout: gl.constexpr):
    """The same shared memory in another shape."""
    return viewed(memory, memory.dtype, shape, layout)


@gluon.jit
def _taps(conv_ptr, channel, SPAN: gl.constexpr, LAYOUT: gl.constexpr, WARPS: gl.constexpr):
    """The four taps of SPAN channels from `channel` on, each fp32 [1, SPAN]."""
    flat: gl.constexpr = gl.BlockedLayout([SPAN // 8], [32], [WARPS], [0])
    taps = gl.load(conv_ptr + channel * 4 + gl.arange(0, 4 * SPAN, layout=flat))
    even, odd = gl.split(gl.reshape(taps, [SPAN, 2, 2]))
    t0, t2 = gl.split(even)
    t1, t3 = gl.split(odd)
    taps = (t0, t1, t2, t3)
    wide = ()
    for j in gl.static_range(4):
        wide = wide + (gl.convert_layout(taps[j], gl.SliceLayout(0, LAYOUT)),)
    return wide


@gluon.jit
def _before(tail_ptr, past_x_ptr, w, CHANNELS: gl.constexpr):
    """Where the convolution's input w stands that is older than the new rows; 0 is the tail's."""
    return gl.where(w < 3, tail_ptr + w * CHANNELS, past_x_ptr + (w - 3) * CHANNELS)


@gluon.jit
def _inputs(line, channel):
    """[rows, channels] at lines [rows]; chosen pointers say nothing of runs by themselves."""
    RUN: gl.constexpr = channel.shape[0]
    at = gl.max_contiguous(line[:, None] + channel[None, :], [1, RUN])
    return gl.load(gl.multiple_of(at, [16, 16]))


@gluon.jit
def _window(
    qkvz_ptr, tail_ptr, past_x_ptr, at, pending, channel,
    CHANNELS: gl.constexpr, STRIDE: gl.constexpr,
):  # fmt: skip
    """The four inputs that meet the taps in rows `at`: [rows, channels] each."""
    x = ()
    for j in gl.static_range(4):
        w = at + (j - 3)
        older = _before(tail_ptr, past_x_ptr, w + pending + 3, CHANNELS)
        x = x + (_inputs(gl.where(w < 0, older, qkvz_ptr + w * STRIDE), channel),)
    return x


@gluon.jit
def _conv(x, taps):
    """silu(conv) of inputs x, both rounded; fp32 [rows, channels]."""
    dtype: gl.constexpr = x[0].dtype
    y = _wide(taps[0])[None, :] * _wide(x[0])
    for j in gl.static_range(1, 4):
        y = y + _wide(taps[j])[None, :] * _wide(x[j])
    y = rounded_pairs(y, dtype)
    return rounded_pairs(y * _sigmoid(y), dtype)


@gluon.jit
def _pieces(rows, i, TILES: gl.constexpr, LAYOUT: gl.constexpr):
    """Row i of [MAX_ROWS * TILES, keys of a tile], as the state's tiles meet it."""
    pieces = ()
    for t in gl.static_range(TILES):
        x = rows.index(i * TILES + t).load(gl.SliceLayout(1, LAYOUT))
        pieces = pieces + (x[:, None],)
    return pieces


@gluon.jit
def _dot(tiles, pieces, TILES: gl.constexpr):
    """sum_k s[k, :] p[k]."""
    y = tiles[0] * pieces[0]
    for t in gl.static_range(1, TILES):
        y = gl.fma(tiles[t], gl.broadcast(pieces[t], tiles[t])[0], y)
    return gl.sum(y, axis=0)


@gluon.jit
def _decayed(tiles, k, u, decay, TILES: gl.constexpr):
    """s * decay + k u^T, the product of decay rounded, the rest at once."""
    after = ()
    for t in gl.static_range(TILES):
        s = tiles[t] * decay[None, :]
        pair = gl.broadcast(k[t], s)[0], gl.broadcast(u[None, :], s)[0]
        after = after + (gl.fma(pair[0], pair[1], s),)
    return after


@gluon.jit(do_not_specialize=["rows"])
def _gated_delta_step_gluon(
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
    words_ptr,
    arrived_ptr,
    y_ptr,
    rows,
    eps,
    K_HEADS: gl.constexpr,
    V_HEADS: gl.constexpr,
    D: gl.constexpr,
    COLUMNS: gl.constexpr,
    WARPS: gl.constexpr,
    ACROSS: gl.constexpr,
    MAX_ROWS: gl.constexpr,
    ROW_GROUP: gl.constexpr,
    PDL: gl.constexpr,
):
    GROUP: gl.constexpr = V_HEADS // K_HEADS
    CHANNELS: gl.constexpr = (2 * K_HEADS + V_HEADS) * D
    STRIDE: gl.constexpr = CHANNELS + V_HEADS * D
    PARTS: gl.constexpr = D // COLUMNS
    TILE: gl.constexpr = 4 * ACROSS  # keys of a tile: four in each lane
    TILES: gl.constexpr = D // TILE
    GROUPS: gl.constexpr = MAX_ROWS // ROW_GROUP
    BESIDE: gl.constexpr = 32 // ACROSS
    OWN: gl.constexpr = COLUMNS // (BESIDE * WARPS)  # columns of a lane
    state: gl.constexpr = gl.BlockedLayout([4, OWN], [ACROSS, BESIDE], [1, WARPS], [1, 0])
    by_col: gl.constexpr = gl.SliceLayout(0, state)
    out: gl.constexpr = gl.BlockedLayout(
        [MAX_ROWS // ACROSS, OWN], [ACROSS, BESIDE], [1, WARPS], [1, 0]
    )
    keys: gl.constexpr = gl.BlockedLayout([1, D // 32], [1, 32], [WARPS, 1], [1, 0])
    values: gl.constexpr = gl.BlockedLayout([1, COLUMNS // 32], [1, 32], [WARPS, 1], [1, 0])
    line: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    plane: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    dtype: gl.constexpr = qkvz_ptr.dtype.element_ty
    part = gl.program_id(0)
    head = gl.program_id(1)
    k_head = head // GROUP
    first = part * COLUMNS
    q_from = k_head * D  # channels of q, k and v
    k_from = (K_HEADS + k_head) * D
    v_from = 2 * K_HEADS * D + head * D + first
    let_next_start(PDL)
    q_taps = _taps(conv_ptr, q_from, D, keys, WARPS)
    k_taps = _taps(conv_ptr, k_from, D, keys, WARPS)
    v_taps = _taps(conv_ptr, v_from, COLUMNS, values, WARPS)
    rate = -gl.exp(gl.load(a_log_ptr + head).to(gl.float32))
    dt_bias = gl.load(dt_bias_ptr + head).to(gl.float32)
    out_col = gl.arange(0, COLUMNS, layout=gl.SliceLayout(0, out))
    norm_weight = gl.load(norm_weight_ptr + first + out_col).to(gl.float32)
    wait_for_inputs(PDL)

    pending = gl.load(pending_ptr).to(gl.int32)
    col = gl.arange(0, COLUMNS, layout=by_col)
    key = gl.arange(0, TILE, layout=gl.SliceLayout(1, state))
    h_ptr += head * D * D + first
    place = key[:, None] * D + col[None, :]
    tiles = ()
    for t in gl.static_range(TILES):
        tiles = tiles + (gl.load(h_ptr + t * TILE * D + place),)
    tl.debug_barrier()  # the state is under way before anything waits for `pending`

    past_k = gl.allocate_shared_memory(gl.float32, [MAX_ROWS, D], plane)
    past_u = gl.allocate_shared_memory(gl.float32, [MAX_ROWS, COLUMNS], plane)
    past_decay = gl.allocate_shared_memory(gl.float32, [MAX_ROWS], line)
    new_k = gl.allocate_shared_memory(gl.float32, [GROUPS, ROW_GROUP, D], plane)
    new_q = gl.allocate_shared_memory(gl.float32, [GROUPS, ROW_GROUP, D], plane)
    new_v = gl.allocate_shared_memory(gl.float32, [GROUPS, ROW_GROUP, COLUMNS], plane)
    raw_q = gl.allocate_shared_memory(dtype, [GROUPS, ROW_GROUP, D], plane)
    raw_k = gl.allocate_shared_memory(dtype, [GROUPS, ROW_GROUP, D], plane)
    raw_v = gl.allocate_shared_memory(dtype, [GROUPS, ROW_GROUP, COLUMNS], plane)
    tail_q = gl.allocate_shared_memory(dtype, [4, D], plane)
    tail_k = gl.allocate_shared_memory(dtype, [4, D], plane)
    tail_v = gl.allocate_shared_memory(dtype, [4, COLUMNS], plane)
    decays = gl.allocate_shared_memory(gl.float32, [GROUPS, ROW_GROUP], line)
    writes = gl.allocate_shared_memory(gl.float32, [GROUPS, ROW_GROUP], line)
    scores = gl.allocate_shared_memory(gl.float32, [GROUPS, ROW_GROUP], line)

    k_row = gl.arange(0, D, layout=gl.SliceLayout(0, keys))
    v_row = gl.arange(0, COLUMNS, layout=gl.SliceLayout(0, values))
    r = gl.arange(0, MAX_ROWS, layout=gl.SliceLayout(1, keys))
    rv = gl.arange(0, MAX_ROWS, layout=gl.SliceLayout(1, values))
    folded = (r[:, None] < pending) & (k_row >= 0)[None, :]
    own = (rv[:, None] < pending) & (v_row >= 0)[None, :]
    ks = gl.load(past_k_ptr + r[:, None] * K_HEADS * D + (q_from + k_row)[None, :], mask=folded)
    us = gl.load(
        past_u_ptr + (rv[:, None] * V_HEADS + head) * D + (first + v_row)[None, :], mask=own
    )
    gs = gl.load(past_decay_ptr + r * V_HEADS + head, mask=r < pending)
    j = gl.minimum(gl.arange(0, 4, layout=gl.SliceLayout(1, keys)), 2) + pending
    jv = gl.minimum(gl.arange(0, 4, layout=gl.SliceLayout(1, values)), 2) + pending
    older = _before(tail_ptr, past_x_ptr, j, CHANNELS)
    old_q, old_k = _inputs(older, q_from + k_row), _inputs(older, k_from + k_row)
    old_v = _inputs(_before(tail_ptr, past_x_ptr, jv, CHANNELS), v_from + v_row)

    for start in range(0, rows, ROW_GROUP):
        g = start // ROW_GROUP
        i = start + gl.arange(0, ROW_GROUP, layout=gl.SliceLayout(1, keys))
        iv = start + gl.arange(0, ROW_GROUP, layout=gl.SliceLayout(1, values))
        at, at_v = gl.minimum(i, rows - 1), gl.minimum(iv, rows - 1)
        b = gl.load(ba_ptr + at * 2 * V_HEADS + head).to(gl.float32)
        a = gl.load(ba_ptr + at * 2 * V_HEADS + V_HEADS + head).to(gl.float32)
        xq = _window(qkvz_ptr, tail_ptr, past_x_ptr, at, pending, q_from + k_row, CHANNELS, STRIDE)
        xk = _window(qkvz_ptr, tail_ptr, past_x_ptr, at, pending, k_from + k_row, CHANNELS, STRIDE)
        xv = _window(
            qkvz_ptr, tail_ptr, past_x_ptr, at_v, pending, v_from + v_row, CHANNELS, STRIDE
        )
        decay = gl.exp(rate * softplus(a + dt_bias))
        beta = rounded(_sigmoid(b), dtype)
        q, k, v = _conv(xq, q_taps), _conv(xk, k_taps), _conv(xv, v_taps)
        q_scale = gl.rsqrt(gl.sum(q * q, axis=1) + 1e-6) * (D**-0.5)
        k_scale = gl.rsqrt(gl.sum(k * k, axis=1) + 1e-6)
        score = gl.sum(q * k, axis=1) * q_scale * k_scale
        new_q.index(g).store(q * q_scale[:, None])
        new_k.index(g).store(k * k_scale[:, None])
        new_v.index(g).store(v * gl.convert_layout(beta, gl.SliceLayout(1, values))[:, None])
        raw_q.index(g).store(xq[3])
        raw_k.index(g).store(xk[3])
        raw_v.index(g).store(xv[3])
        decays.index(g).store(decay)
        writes.index(g).store(beta * decay)
        scores.index(g).store(score)
    past_k.store(ks)
    past_u.store(us)
    past_decay.store(gs)
    tail_q.store(old_q)
    tail_k.store(old_k)
    tail_v.store(old_v)
    tl.debug_barrier()  # all is ready; what this program alone overwrites, it has read

    thread = gl.arange(0, 32 * WARPS, layout=gl.BlockedLayout([1], [32], [WARPS], [0]))
    one, counter = gl.full_like(thread, 1), arrived_ptr + k_head + 0 * thread
    before = gl.atomic_add(counter, one, mask=thread == 0, sem="relaxed")
    out_row = gl.arange(0, MAX_ROWS, layout=gl.SliceLayout(1, out))
    live = (out_row[:, None] < rows) & (out_col >= 0)[None, :]
    z = gl.load(
        qkvz_ptr + CHANNELS + head * D + first + out_row[:, None] * STRIDE + out_col[None, :],
        mask=live,
        other=0.0,
    ).to(gl.float32)

    k_rows = _view(past_k, [MAX_ROWS * TILES, TILE], line)
    u_rows = past_u
    g_rows = _view(past_decay, [MAX_ROWS, 1], line)
    u_rows = _view(past_u, [MAX_ROWS, COLUMNS], line)
    for i in range(pending):
        k = _pieces(k_rows, i, TILES, state)
        u, decay = u_rows.index(i).load(by_col), g_rows.index(i).load(by_col)
        tiles = _decayed(tiles, k, u, decay, TILES)
    row = gl.arange(0, MAX_ROWS, layout=gl.SliceLayout(1, values))
    if pending > 0:
        for t in gl.static_range(TILES):
            gl.store(h_ptr + t * TILE * D + place, tiles[t])
        old = gl.arange(0, 4, layout=gl.SliceLayout(1, values))
        tail = tail_v.load(values)
        at = tail_ptr + old[:, None] * CHANNELS + (v_from + v_row)[None, :]
        gl.store(at, tail, mask=(old[:, None] < 3) & (v_row >= 0)[None, :])
    raw = _view(raw_v, [MAX_ROWS, COLUMNS], plane).load(values)
    at = past_x_ptr + row[:, None] * CHANNELS + (v_from + v_row)[None, :]
    gl.store(at, raw, mask=(row[:, None] < rows) & (v_row >= 0)[None, :])

    k_rows = _view(new_k, [MAX_ROWS * TILES, TILE], line)
    q_rows = _view(new_q, [MAX_ROWS * TILES, TILE], line)
    v_rows = _view(new_v, [MAX_ROWS, COLUMNS], line)
    decay_rows = _view(decays, [MAX_ROWS, 1], line)
    write_rows = _view(writes, [MAX_ROWS, 1], line)
    score_rows = _view(scores, [MAX_ROWS, 1], line)
    o = gl.zeros([MAX_ROWS, COLUMNS], gl.float32, layout=out)
    u_at = past_u_ptr + head * D + first + col
    for i in range(rows):
        k, q = _pieces(k_rows, i, TILES, state), _pieces(q_rows, i, TILES, state)
        v, decay = v_rows.index(i).load(by_col), decay_rows.index(i).load(by_col)
        write, score = write_rows.index(i).load(by_col), score_rows.index(i).load(by_col)
        d, e = _dot(tiles, k, TILES), _dot(tiles, q, TILES)
        u = v - write * d
        tiles = _decayed(tiles, k, u, decay, TILES)
        gl.store(u_at, u)
        u_at += V_HEADS * D
        now = rounded(decay * e + score * u, dtype)
        now = gl.convert_layout(now, gl.SliceLayout(0, out))
        o = gl.where((out_row == i)[:, None], now[None, :], o)

    gate = z * _sigmoid(z)
    squares = gl.sum(o * o, axis=1)
    if PARTS > 1:
        here = words_ptr + head * PARTS * PARTS * MAX_ROWS + out_row
        word = (squares.to(gl.int32, bitcast=True).to(gl.int64) & 0xFFFFFFFF) | (1 << 32)
        for p in gl.static_range(PARTS):
            gl.store(here + (p * PARTS + part) * MAX_ROWS, word, mask=out_row < rows)
        squares = gl.zeros([MAX_ROWS], gl.float32, layout=gl.SliceLayout(1, out))
        for p in gl.static_range(PARTS):
            inbox = here + (part * PARTS + p) * MAX_ROWS
            waiting = 1
            word = gl.zeros([MAX_ROWS], gl.int64, layout=gl.SliceLayout(1, out))
            while waiting > 0:
                word = gl.load(inbox, mask=out_row < rows, other=1 << 32, volatile=True)
                waiting = gl.max(gl.where(word == 0, 1, 0), axis=0)
            squares = squares + word.to(gl.int32).to(gl.float32, bitcast=True)
        tl.debug_barrier()  # every warp has read
        for p in gl.static_range(PARTS):
            inbox = here + (part * PARTS + p) * MAX_ROWS
            gl.store(inbox, gl.zeros_like(word), mask=out_row < rows)
    scale = gl.rsqrt(squares / D + eps)
    y = rounded(norm_weight[None, :] * rounded(o * scale[:, None], dtype), dtype)
    y = (y * gate).to(dtype)
    at = y_ptr + (out_row[:, None] * V_HEADS + head) * D + first + out_col[None, :]
    gl.store(at, y, mask=live)

    if part == 0:  # the other parts have told their sums, so they have read
        gates = _view(decays, [MAX_ROWS], line).load(gl.SliceLayout(1, keys))
        gl.store(past_decay_ptr + r * V_HEADS + head, gates, mask=r < rows)
    if gl.max(gl.where(thread == 0, before, 0), axis=0) == GROUP * PARTS - 1:
        gl.store(arrived_ptr + k_head, 0)
        old = gl.arange(0, 4, layout=gl.SliceLayout(1, keys))[:, None]
        in_tail = (old < 3) & (k_row >= 0)[None, :]
        in_rows = (r[:, None] < rows) & (k_row >= 0)[None, :]
        tail_at = tail_ptr + old * CHANNELS + k_row[None, :]
        x_at = past_x_ptr + r[:, None] * CHANNELS + k_row[None, :]
        gl.store(tail_at + q_from, tail_q.load(keys), mask=in_tail)
        gl.store(tail_at + k_from, tail_k.load(keys), mask=in_tail)
        gl.store(x_at + q_from, _view(raw_q, [MAX_ROWS, D], plane).load(keys), mask=in_rows)
        gl.store(x_at + k_from, _view(raw_k, [MAX_ROWS, D], plane).load(keys), mask=in_rows)
        unit_at = past_k_ptr + (r[:, None] * K_HEADS + k_head) * D + k_row[None, :]
        gl.store(unit_at, _view(new_k, [MAX_ROWS, D], plane).load(keys), mask=in_rows)


@variant("gated_delta_step", "gluon", fake, MUTATES, SUPPORT)
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
    """As the reference, for 1 to 16 rows, square heads of 64 or 128 and four taps."""
    v_heads, d_k, d_v = h.shape
    k_heads, rows, taps = past_k.shape[1], qkvz.shape[0], conv_weight.shape[1]
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
    if d_k != d_v or d_k not in HEADS or taps != TAPS:
        raise ValueError(
            f"gated_delta_step: gluon needs square heads of {HEADS[0]} or {HEADS[1]} and {TAPS}"
            f" taps, got {d_k} x {d_v} and {taps}; use kernel.gated_delta_step=triton"
        )
    columns = min(COLUMNS, d_v)
    parts = d_v // columns
    words = v_heads * parts * parts * MAX_ROWS * 2
    signals = counters(h.device, words + k_heads)
    y = qkvz.new_empty(rows, v_heads * d_v)
    overlap = dependent_launch(h.device)
    _gated_delta_step_gluon[(parts, v_heads)](
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
        signals[:words].view(pending.dtype),
        signals[words:],
        y,
        rows,
        eps,
        K_HEADS=k_heads,
        V_HEADS=v_heads,
        D=d_v,
        COLUMNS=columns,
        WARPS=WARPS,
        ACROSS=ACROSS,
        MAX_ROWS=MAX_ROWS,
        ROW_GROUP=ROW_GROUP,
        PDL=overlap,
        num_warps=WARPS,
        enable_fp_fusion=False,
        launch_pdl=overlap,
    )
    return y
