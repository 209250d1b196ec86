"""Four launches: inputs, the chunks' systems, the pass through them in order, the gated norm.

`_inputs` leaves convolved unit q and k per key head and v per value head; no head is repeated.
`_systems` needs no state, so all chunks run at once: the inverse of each unit lower triangular
system, and the scores inside the chunk.
`_pass` is sequential over chunks and parallel over heads and columns of the state, which it holds
in registers, transposed: columns of v are the lines of every product, so that the state, what it
answers and the corrections u go from one product to the next without leaving their registers.
`_finish` normalises a head's rows in place.

Operands are rounded to the activations' dtype, those of the inverse to fp16 (its entries are at
most 1 in size); sums, gates and state are fp32. A chunk's arithmetic knows nothing of the call's
length: the last chunk's missing tokens have k = v = beta = g = 0 and change nothing.
"""

from dataclasses import dataclass, replace

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.define import Target, variant
from kernels.gated_delta_chunk.reference import MUTATES, fake
from kernels.gpu import INTERPRETED, SUPPORT, check, same_dtype
from kernels.rounding import PLAIN, rounded, silu, softplus

INPUT_ROWS = 64 if INTERPRETED else 32  # convolved at a time by one program
FINISH_ROWS = 64 if INTERPRETED else 16  # of a head, normalised by one program
MAX_KEYS = 128  # the widest key head: a program holds whole lines of the state

# both rounded to bfloat16, and back in fp32
_PAIR = tl.constexpr("""{
    .reg .b32 pair;
    cvt.rn.bf16x2.f32 pair, $3, $2;
    shl.b32 $0, pair, 16;
    and.b32 $1, pair, 0xffff0000;
}""")
_EXP = tl.constexpr("""{
    .reg .f32 t;
    mul.f32 t, $1, 0f3FB8AA3B;
    ex2.approx.ftz.f32 $0, t;
}""")
_SILU = tl.constexpr("""{
    .reg .f32 t;
    mul.f32 t, $1, 0fBFB8AA3B;
    ex2.approx.ftz.f32 t, t;
    add.f32 t, t, 0f3F800000;
    rcp.approx.ftz.f32 t, t;
    mul.f32 $0, $1, t;
}""")


@dataclass(frozen=True)
class Plan:
    """Tokens of a chunk (a divisor of 64), columns of the state to a program, loads in flight."""

    chunk: int
    columns: int
    stages: int

    @staticmethod
    def of(target: Target, dtype: torch.dtype) -> "Plan":
        """Hopper's products have 64 lines, and its tiles fit three times.

        Other cards multiply by 16 lines and have a third of the memory. fp32 is for the
        interpreter: elsewhere it runs, in registers that spill.
        """
        if target.type != "cuda":
            return Plan(chunk=64, columns=64, stages=1)
        if dtype.itemsize > 2:
            return Plan(chunk=16, columns=16, stages=1)
        if target.capability[0] == 9:
            return Plan(chunk=64, columns=64, stages=3)
        return Plan(chunk=16, columns=32, stages=3)


@triton.jit
def _operand(x, dtype: tl.constexpr):
    """fp32 x as a product takes it; the interpreter multiplies fp32 alone."""
    if PLAIN:
        y = rounded(x, dtype)
    else:
        y = x.to(dtype)
    return y


@triton.jit
def _load(ptr):
    """A tile of operands."""
    if PLAIN:
        x = tl.load(ptr).to(tl.float32)
    else:
        x = tl.load(ptr)
    return x


@triton.jit
def _rounded(x, dtype: tl.constexpr):
    """As `rounded`; two conversions to bfloat16 are one instruction."""
    if PLAIN or dtype != tl.bfloat16:
        y = rounded(x, dtype)
    else:
        y = tl.inline_asm_elementwise(
            _PAIR, "=r,=r,r,r", [x], dtype=tl.float32, is_pure=True, pack=2
        )
    return y


@triton.jit
def _exp(x):
    """exp(x), without subnormals."""
    if PLAIN:
        y = tl.exp(x)
    else:
        y = tl.inline_asm_elementwise(_EXP, "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)
    return y


@triton.jit
def _silu(x):
    """x / (1 + exp(-x)) within a few units in the last place, without subnormals."""
    if PLAIN:
        y = silu(x)
    else:
        y = tl.inline_asm_elementwise(_SILU, "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)
    return y


@triton.jit
def _store(ptr, x, mask=None):
    """fp32 x, rounded to what `ptr` points to."""
    dtype = ptr.dtype.element_ty
    tl.store(ptr, _operand(x, dtype).to(dtype), mask=mask)


@triton.jit
def _line(x_ptr, tail_ptr, at, STRIDE: tl.constexpr, CHANNELS: tl.constexpr, WIDTH: tl.constexpr):
    """Where the convolution's input of token `at` stands; the tail's tokens are below 0."""
    return tl.where(
        at < 0, tail_ptr + (at + WIDTH - 1) * CHANNELS, x_ptr + at.to(tl.int64) * STRIDE
    )


@triton.jit
def _convolved(
    x_ptr,
    tail_ptr,
    first,
    channel,
    taps,
    tokens,
    STRIDE: tl.constexpr,
    CHANNELS: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
):
    """silu(conv) of ROWS tokens, both rounded: fp32 [rows, channels]; 0 past the end.

    The tail's terms come first, as they do wherever a text is cut.
    """
    dtype = x_ptr.dtype.element_ty
    RUN: tl.constexpr = channel.shape[0]
    row = first + tl.arange(0, ROWS)
    y = tl.zeros([ROWS, RUN], tl.float32)
    live = (row < tokens)[:, None] & (channel >= 0)[None, :]
    if first == 0:
        for j in tl.static_range(WIDTH - 1):
            at = row + j
            old = tail_ptr + at[:, None] * CHANNELS + channel[None, :]
            x = tl.load(old, mask=live & (at < WIDTH - 1)[:, None], other=0.0).to(tl.float32)
            y = tl.fma(tl.broadcast_to(taps[j], y.shape), x, y)
    line = x_ptr + row.to(tl.int64)[:, None] * STRIDE + channel[None, :]
    line = tl.multiple_of(tl.max_contiguous(line, [1, RUN]), [16, 16])
    for j in tl.static_range(WIDTH):
        new = (row + j >= WIDTH - 1)[:, None]
        x = tl.load(line + (j - WIDTH + 1) * STRIDE, mask=live & new, other=0.0)
        y = tl.fma(tl.broadcast_to(taps[j], y.shape), x.to(tl.float32), y)
    return _rounded(_silu(_rounded(y, dtype)), dtype)


@triton.jit
def _taps(conv_ptr, channel, WIDTH: tl.constexpr):
    taps = ()
    for j in tl.static_range(WIDTH):
        taps = taps + (tl.load(conv_ptr + channel * WIDTH + j).to(tl.float32)[None, :],)
    return taps


@triton.jit(do_not_specialize=["tokens"])
def _inputs(
    qkvz_ptr,
    tail_ptr,
    conv_ptr,
    qk_ptr,
    v_ptr,
    tokens,
    scale,
    K_HEADS: tl.constexpr,
    V_HEADS: tl.constexpr,
    D_K: tl.constexpr,
    D_V: tl.constexpr,
    WIDTH: tl.constexpr,
    CHUNK: tl.constexpr,
    ROWS: tl.constexpr,
):
    """q, k [2, k_heads, padded, d_k] of lengths `scale` and 1; v [chunks, v_heads, d_v, chunk]."""
    KEYS: tl.constexpr = 2 * K_HEADS * D_K
    CHANNELS: tl.constexpr = KEYS + V_HEADS * D_V
    STRIDE: tl.constexpr = CHANNELS + V_HEADS * D_V
    chunk = tl.program_id(0)
    part = tl.program_id(1)
    i = tl.arange(0, ROWS)
    if part < 2 * K_HEADS:
        dim = tl.arange(0, D_K)
        unit = tl.where(part < K_HEADS, scale, 1.0)
        key_taps = _taps(conv_ptr, part * D_K + dim, WIDTH)
        keys_ptr = qk_ptr + part.to(tl.int64) * tl.num_programs(0) * CHUNK * D_K
        for start in tl.static_range(0, CHUNK, ROWS):
            row = chunk * CHUNK + start + i
            x = _convolved(
                qkvz_ptr,
                tail_ptr,
                chunk * CHUNK + start,
                part * D_K + dim,
                key_taps,
                tokens,
                STRIDE,
                CHANNELS,
                WIDTH,
                ROWS,
            )
            x = x * (tl.rsqrt(tl.sum(x * x, axis=1) + 1e-6) * unit)[:, None]
            _store(keys_ptr + row.to(tl.int64)[:, None] * D_K + dim[None, :], x)
    else:
        head = part - 2 * K_HEADS
        d = tl.arange(0, D_V)
        taps = _taps(conv_ptr, KEYS + head * D_V + d, WIDTH)
        values_ptr = v_ptr + (chunk.to(tl.int64) * V_HEADS + head) * D_V * CHUNK
        for start in tl.static_range(0, CHUNK, ROWS):
            v = _convolved(
                qkvz_ptr,
                tail_ptr,
                chunk * CHUNK + start,
                KEYS + head * D_V + d,
                taps,
                tokens,
                STRIDE,
                CHANNELS,
                WIDTH,
                ROWS,
            )
            _store(values_ptr + d[:, None] * CHUNK + (start + i)[None, :], tl.trans(v))


@triton.jit
def _carry(
    x_ptr,
    tail_ptr,
    channel,
    tokens,
    STRIDE: tl.constexpr,
    CHANNELS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """The convolution's last inputs become its tail, at these channels."""
    last = ()
    for j in tl.static_range(WIDTH - 1):
        line = _line(x_ptr, tail_ptr, tokens + (j - WIDTH + 1), STRIDE, CHANNELS, WIDTH)
        last = last + (tl.load(line + channel),)
    tl.debug_barrier()  # an old tail's tokens may stay in it, in other places
    for j in tl.static_range(WIDTH - 1):
        tl.store(tail_ptr + j * CHANNELS + channel, last[j])


@triton.jit
def _merged(x, owed, SIZE: tl.constexpr, DTYPE: tl.constexpr):
    """Diagonal blocks of SIZE of the inverse -> of twice that: X over Y gets the corner Y (-a) X.

    `owed`: -a as an operand.
    """
    CHUNK: tl.constexpr = x.shape[0]
    i = tl.arange(0, CHUNK)[:, None] // SIZE
    j = tl.arange(0, CHUNK)[None, :] // SIZE
    corner = (i % 2 == 1) & (i == j + 1)
    blocks = _operand(x, DTYPE)
    y = tl.where(corner, tl.dot(blocks, owed, input_precision="tf32x3"), 0.0)
    return tl.dot(_operand(y, DTYPE), blocks, x, input_precision="tf32x3")


@triton.jit
def _inverse(a, DTYPE: tl.constexpr):
    """(I + a)^-1 of strictly lower triangular fp32 a [chunk, chunk]."""
    CHUNK: tl.constexpr = a.shape[0]
    i = tl.arange(0, CHUNK)[:, None]
    j = tl.arange(0, CHUNK)[None, :]
    x = tl.where(i == j, 1.0, tl.where((i % 2 == 1) & (i == j + 1), -a, 0.0))
    for level in tl.static_range(1, 6):
        if (1 << level) < CHUNK:
            x = _merged(x, _operand(-a, DTYPE), 1 << level, DTYPE)
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
            _carry(qkvz_ptr, tail_ptr, channel, tokens, STRIDE, CHANNELS, WIDTH)
        for n in tl.static_range(GROUP):
            first = 2 * K_HEADS * D_K + (k_head * GROUP + n) * D_V
            channel = first + tl.arange(0, D_V)
            _carry(qkvz_ptr, tail_ptr, channel, tokens, STRIDE, CHANNELS, WIDTH)
    i = tl.arange(0, CHUNK)
    row = chunk * CHUNK + i
    padded = tl.num_programs(1).to(tl.int64) * CHUNK
    span = row[:, None] * D_K + d[None, :]
    q = _load(qk_ptr + k_head * padded * D_K + span)
    k = _load(qk_ptr + (K_HEADS + k_head) * padded * D_K + span)
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
        _store(inner_ptr + (first + n) * CHUNK * CHUNK + at, scores * decay)
    keys = tl.dot(k, tl.trans(k), input_precision="tf32x3")
    for n in range(GROUP):  # apart: the registers hold no scores beside an inverse
        beta, _, decay = _gates(
            ba_ptr, a_log_ptr, dt_bias_ptr, k_head * GROUP + n, row, tokens, V_HEADS
        )
        owed = tl.where(i[:, None] > i[None, :], beta[:, None] * keys * decay, 0.0)
        inverse = _inverse(owed, NEAR) * beta[None, :]
        _store(inverse_ptr + (first + n) * CHUNK * CHUNK + at, inverse)


@triton.jit(do_not_specialize=["tokens"])
def _pass(
    qk_ptr,
    v_ptr,
    inverse_ptr,
    inner_ptr,
    decay_ptr,
    h_ptr,
    o_ptr,
    tokens,
    K_HEADS: tl.constexpr,
    V_HEADS: tl.constexpr,
    D_K: tl.constexpr,
    D_V: tl.constexpr,
    CHUNK: tl.constexpr,
    COLUMNS: tl.constexpr,
    STAGES: tl.constexpr,
):
    """o [tokens, v_heads d_v], rounded, and h after all tokens; every tile here is transposed."""
    dtype = o_ptr.dtype.element_ty
    head = tl.program_id(1).to(tl.int64)
    k_head = head // (V_HEADS // K_HEADS)
    chunks = tl.cdiv(tokens, CHUNK)
    padded = chunks * CHUNK
    d = tl.arange(0, D_K)
    i = tl.arange(0, CHUNK)
    col = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    at = i[:, None] * CHUNK + i[None, :]
    span = i[:, None] * D_K + d[None, :]
    state = h_ptr + head * D_K * D_V + d[None, :] * D_V + col[:, None]
    s = tl.load(state)
    for n in tl.range(chunks, num_stages=STAGES):
        place = n * V_HEADS + head
        q = _load(qk_ptr + (k_head * padded + n * CHUNK) * D_K + span)
        k = _load(qk_ptr + ((K_HEADS + k_head) * padded + n * CHUNK) * D_K + span)
        v = _load(v_ptr + (place * D_V + col[:, None]) * CHUNK + i[None, :])
        inverse = _load(inverse_ptr + place * CHUNK * CHUNK + at)
        inner = _load(inner_ptr + place * CHUNK * CHUNK + at)
        decay = decay_ptr + place * 2 * CHUNK
        entry = tl.broadcast_to(tl.load(decay + i)[None, :], [COLUMNS, CHUNK])
        rest = tl.load(decay + CHUNK + i)[None, :]
        all = tl.load(decay + CHUNK - 1)
        held = _operand(s, dtype)
        r = tl.dot(held, tl.trans(k), input_precision="tf32x3")
        r = tl.fma(r, -entry, v.to(tl.float32))
        u = tl.dot(_operand(r, dtype), tl.trans(inverse), input_precision="tf32x3")
        o = tl.dot(held, tl.trans(q), input_precision="tf32x3") * entry
        o = tl.dot(_operand(u, dtype), tl.trans(inner), o, input_precision="tf32x3")
        s = tl.dot(_operand(u * rest, dtype), k, s * all, input_precision="tf32x3")
        row = n * CHUNK + i
        out = o_ptr + (row[None, :] * V_HEADS + head) * D_V + col[:, None]
        _store(out, o, mask=(row < tokens)[None, :] & (col >= 0)[:, None])
    tl.store(state, s)


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
    o = _rounded(o * tl.rsqrt(tl.sum(o * o, axis=1) / D_V + eps)[:, None], dtype)
    _store(at, _rounded(weight * o, dtype) * _silu(z.to(tl.float32)), mask=live)


def launch(
    qkvz: Tensor,
    ba: Tensor,
    conv_weight: Tensor,
    a_log: Tensor,
    dt_bias: Tensor,
    norm_weight: Tensor,
    h: Tensor,
    tail: Tensor,
    eps: float,
    plan: Plan,
) -> Tensor:
    """Scratch: per token, all of q, k and v, and 2 chunk + 2 values per value head."""
    v_heads, d_k, d_v = h.shape
    tokens, (channels, width) = qkvz.shape[0], conv_weight.shape
    k_heads = (channels - v_heads * d_v) // (2 * d_k)
    n = plan.chunk
    chunks = triton.cdiv(tokens, n)
    columns = min(plan.columns, d_v)
    qk = qkvz.new_empty(2, k_heads, chunks * n, d_k)
    v = qkvz.new_empty(chunks, v_heads, d_v, n)
    inverse, inner = (qkvz.new_empty(chunks, v_heads, n, n) for _ in range(2))
    decay = h.new_empty(chunks, v_heads, 2, n)
    y = qkvz.new_empty(tokens, v_heads * d_v)
    heads = {"K_HEADS": k_heads, "V_HEADS": v_heads, "D_K": d_k, "D_V": d_v, "CHUNK": n}
    _inputs[(chunks, 2 * k_heads + v_heads)](
        qkvz,
        tail,
        conv_weight,
        qk,
        v,
        tokens,
        d_k**-0.5,
        **heads,
        WIDTH=width,
        ROWS=min(INPUT_ROWS, n),
        num_warps=4,
        enable_fp_fusion=False,
    )
    _systems[(k_heads, chunks)](
        qkvz,
        ba,
        a_log,
        dt_bias,
        tail,
        qk,
        inverse,
        inner,
        decay,
        tokens,
        **heads,
        WIDTH=width,
        num_warps=n // 16,
        enable_fp_fusion=False,
        num_stages=1,
    )
    _pass[(d_v // columns, v_heads)](
        qk,
        v,
        inverse,
        inner,
        decay,
        h,
        y,
        tokens,
        **heads,
        COLUMNS=columns,
        STAGES=plan.stages,
        num_warps=columns // 16,
        enable_fp_fusion=False,
    )
    _finish[(v_heads, triton.cdiv(tokens, FINISH_ROWS))](
        qkvz,
        norm_weight,
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
    return y


@variant(
    "gated_delta_chunk",
    "triton",
    fake,
    MUTATES,
    replace(SUPPORT, powers={"d_k": 16, "d_v": 16}, most={"d_k": MAX_KEYS}),
)
def gated_delta_chunk(
    qkvz: Tensor,
    ba: Tensor,
    conv_weight: Tensor,
    a_log: Tensor,
    dt_bias: Tensor,
    norm_weight: Tensor,
    h: Tensor,
    tail: Tensor,
    eps: float,
) -> Tensor:
    """As the reference; head widths must be powers of two from 16 on, keys' at most 128."""
    _, d_k, d_v = h.shape
    one = {"qkvz": qkvz, "ba": ba, "conv_weight": conv_weight, "norm_weight": norm_weight}
    check("gated_delta_chunk", 1, **one, a_log=a_log, dt_bias=dt_bias, h=h, tail=tail)
    same_dtype("gated_delta_chunk", **one, tail=tail)
    if any(d < 16 or d & (d - 1) for d in (d_k, d_v)) or d_k > MAX_KEYS:
        raise ValueError(
            "gated_delta_chunk: triton needs head widths that are powers of two from 16 on, keys up"
            f" to {MAX_KEYS}, got {d_k} and {d_v}; use kernel.gated_delta_chunk=reference"
        )
    plan = Plan.of(Target.of(qkvz.device), qkvz.dtype)
    return launch(qkvz, ba, conv_weight, a_log, dt_bias, norm_weight, h, tail, eps, plan)
