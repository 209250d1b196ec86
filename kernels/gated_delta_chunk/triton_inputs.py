"""The first launch: the convolution, and what becomes of its outputs and of its tail.

It leaves convolved unit q and k per key head and v per value head; no head is repeated. Programs of
the first chunk read the tail, so the next launch is the one that replaces it (`carry`). Rows at a
time are chosen for speed; the order of the taps is numerics, the same wherever a text is cut.
"""
# pyright: reportGeneralTypeIssues=false, reportCallIssue=false
# (Triton's ranges and launch options exist inside its compiler alone.)

import triton
import triton.language as tl
from torch import Tensor

from kernels.gated_delta_chunk.triton_parts import quick_silu, store
from kernels.gpu import INTERPRETED
from kernels.rounding import rounded_pairs

INPUT_ROWS = 64 if INTERPRETED else 32  # convolved at a time by one program


@triton.jit
def _line(x_ptr, tail_ptr, at, STRIDE: tl.constexpr, CHANNELS: tl.constexpr, WIDTH: tl.constexpr):
    """Where the convolution's input of token `at` stands; the tail's tokens are below 0."""
    return tl.where(
        at < 0, tail_ptr + (at + WIDTH - 1) * CHANNELS, x_ptr + at.to(tl.int64) * STRIDE
    )


@triton.jit
def carry(
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
    return rounded_pairs(quick_silu(rounded_pairs(y, dtype)), dtype)


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
            store(keys_ptr + row.to(tl.int64)[:, None] * D_K + dim[None, :], x)
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
            store(values_ptr + d[:, None] * CHUNK + (start + i)[None, :], tl.trans(v))


def launch_inputs(
    qkvz: Tensor, tail: Tensor, conv_weight: Tensor, qk: Tensor, v: Tensor, heads: dict[str, int]
) -> None:
    """Write qk [2, k_heads, padded, d_k] and v [chunks, v_heads, d_v, chunk]."""
    _, k_heads, _, d_k = qk.shape
    chunks, v_heads, _, n = v.shape
    _inputs[(chunks, 2 * k_heads + v_heads)](
        qkvz,
        tail,
        conv_weight,
        qk,
        v,
        qkvz.shape[0],
        d_k**-0.5,
        **heads,
        WIDTH=conv_weight.shape[1],
        ROWS=min(INPUT_ROWS, n),
        num_warps=4,
        enable_fp_fusion=False,
    )
