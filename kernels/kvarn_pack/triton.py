"""A program per tile, key-value head and of keys or values; one without a tile ends at once.

A tile's squares stay in registers while they are balanced; then half of it is read at a time. Sums
are taken in another order than the reference's: codes may differ by one where a number lies in the
middle between two.
"""

from dataclasses import replace

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.define import variant
from kernels.gpu import (
    SUPPORT,
    check,
    dependent_launch,
    let_next_start,
    same_dtype,
    wait_for_inputs,
)
from kernels.kvarn import FINEST, FLAT, LAG, LARGEST, ROUNDS, SHRINKS, TILE, value_bits
from kernels.kvarn_pack.reference import MUTATES, fake

_TILE = tl.constexpr(TILE)
_HALF = tl.constexpr(TILE // 2)
_LAG = tl.constexpr(LAG)
_LARGEST = tl.constexpr(LARGEST)
_ROUNDS = tl.constexpr(ROUNDS)
_SHRINKS = tl.constexpr(SHRINKS)
_FINER = tl.constexpr(FINEST[2])
_FINE = tl.constexpr(FINEST[4])
_FLAT = tl.constexpr(FLAT)
_LEAST = tl.constexpr(2.0**-20)
_NONE = tl.constexpr(2.0**-100)
_MOST = tl.constexpr(2.0**20)


@triton.jit
def _between(x, low: tl.constexpr, high: tl.constexpr):
    return tl.minimum(tl.maximum(x, low), high)


@triton.jit
def _spread(moments):
    return tl.maximum(tl.max(moments, axis=0), _LEAST) / tl.maximum(tl.min(moments, axis=0), _LEAST)


@triton.jit
def _turn(square, dim, dims, D: tl.constexpr):
    """The next inverse factors of tokens and dims, of which `dims` are the moments."""
    dim = _between(dim / tl.maximum(dims, _NONE), _LEAST, _MOST)
    tokens = tl.sum(square * dim[None, :], axis=1) / D
    return _between(1.0 / tl.maximum(tokens, _NONE), _LEAST, _MOST), dim


@triton.jit
def _balance(square, D: tl.constexpr):
    """Factors of tokens [128] and dims [D] of numbers whose squares [128, D] these are.

    Turns up to the best one are done again, which takes fewer registers than to hold its factors.
    """
    token = tl.full([_TILE], 1.0, tl.float32)  # inverse
    dim = tl.full([D], 1.0, tl.float32)
    least, best = float("inf"), 0
    for turn in range(_ROUNDS + 1):
        dims = dim * tl.sum(square * token[:, None], axis=0) / _TILE
        uneven = _spread(token * tl.sum(square * dim[None, :], axis=1) / D) * _spread(dims)
        best = tl.where(uneven < least, turn, best)
        least = tl.minimum(uneven, least)
        token, dim = _turn(square, dim, dims, D)
    token = tl.full([_TILE], 1.0, tl.float32)
    dim = tl.full([D], 1.0, tl.float32)
    for _ in range(best):
        dims = dim * tl.sum(square * token[:, None], axis=0) / _TILE
        token, dim = _turn(square, dim, dims, D)
    return tl.sqrt(1.0 / token), tl.sqrt(1.0 / dim)


@triton.jit
def _rows(x, AXIS: tl.constexpr):
    """One number per row as a column, where rows run along AXIS."""
    return tl.expand_dims(x, AXIS)


@triton.jit
def _codes(y, step, AXIS: tl.constexpr, BITS: tl.constexpr):
    """Of rows whose middle is 0."""
    TOP: tl.constexpr = (1 << BITS) - 1
    inverse = tl.where(step > 0.0, 1.0 / tl.where(step > 0.0, step, 1.0), 0.0)
    code = y * _rows(inverse, AXIS) + (TOP * 0.5 + 0.5)
    return _between(tl.floor(code), 0.0, TOP * 1.0)


@triton.jit
def _grid(y, AXIS: tl.constexpr, BITS: tl.constexpr):
    """Codes of y whose rows run along AXIS, and their steps and zeros.

    What is held is y less its rows' middles, then the codes, and nothing else as large.
    """
    TOP: tl.constexpr = (1 << BITS) - 1
    HALF: tl.constexpr = (1 << BITS) // 2
    PART: tl.constexpr = _FINER if BITS == 2 else _FINE
    COUNT: tl.constexpr = y.shape[AXIS]
    low, high = tl.min(y, axis=AXIS), tl.max(y, axis=AXIS)
    middle, width = (low + high) * 0.5, high - low
    y -= _rows(middle, AXIS)
    least = tl.full(low.shape, float("inf"), tl.float32)
    step = tl.zeros(low.shape, tl.float32)
    for i in range(_SHRINKS):
        narrow = width * ((1.0 - i * PART) / TOP)
        off = (_codes(y, narrow, AXIS, BITS) - TOP * 0.5) * _rows(narrow, AXIS) - y
        squares = tl.sum(off * off, axis=AXIS)
        better = squares < least
        least = tl.where(better, squares, least)
        step = tl.where(better, narrow, step)
    codes = _codes(y, step, AXIS, BITS)
    centred = codes - TOP * 0.5
    shared = tl.sum(y * centred, axis=AXIS) * step
    shared += middle * (tl.sum(centred, axis=AXIS) * step)
    total = middle * (tl.sum(y, axis=AXIS) + COUNT * middle)  # what both have besides
    whole = tl.sum(y * y, axis=AXIS) + middle * tl.sum(y, axis=AXIS) + total
    shared += total
    flat = step * _FLAT <= tl.abs(middle)
    gain = tl.where(
        flat | (shared <= 0.0), 1.0, _between(whole / tl.maximum(shared, _NONE), 0.5, 2.0)
    )
    codes = tl.where(_rows(flat, AXIS), HALF * 1.0, codes)
    zero = tl.where(flat, 1.0, middle / tl.where(flat, 1.0, step) + (HALF - TOP * 0.5))
    return codes, tl.where(flat, middle, step) * gain, zero


@triton.jit
def _joined(codes, SIDE: tl.constexpr, PARTS: tl.constexpr, BITS: tl.constexpr):
    """Bytes [128, SIDE / PARTS] or [64, ...] of codes [..., SIDE], of PARTS beside each other."""
    WIDTH: tl.constexpr = SIDE // PARTS
    shift = tl.arange(0, SIDE) // WIDTH * BITS
    codes = codes.to(tl.int32) << shift[None, :]
    return tl.sum(tl.reshape(codes, [codes.shape[0], PARTS, WIDTH]), axis=1).to(tl.uint8)


@triton.jit
def _half(x, n, SIZE: tl.constexpr):
    """Half n of a vector [SIZE]."""
    parts = tl.reshape(x, [2, SIZE // 2])
    return tl.sum(tl.where((tl.arange(0, 2) == n)[:, None], parts, 0.0), axis=0)


@triton.jit
def _put(ptr, x):
    tl.store(ptr, _between(x, -_LARGEST, _LARGEST).to(ptr.dtype.element_ty))


@triton.jit
def _store_keys(source_ptr, mean, size, token, dim, slot, codes_ptr, scales_ptr, D: tl.constexpr):
    """Half of the dims at a time: the lower bytes of words, then the upper ones."""
    t, c, j = tl.arange(0, _TILE), tl.arange(0, D // 2), tl.arange(0, D // 4)
    scales_ptr += slot * (2 * D + _TILE)
    codes_ptr += slot * (_TILE * D // 2) + t[:, None] * (D // 2) + 2 * j[None, :]
    _put(scales_ptr + 2 * D + t, token * size)
    for n in range(2):
        at = n * (D // 2) + c
        own = _half(dim, n, D)
        y = tl.load(source_ptr + t[:, None] * D + at[None, :]).to(tl.float32)
        y = (y - _half(mean, n, D)[None, :]) / size / token[:, None] / own[None, :]
        codes, step, zero = _grid(y, 0, 4)
        _put(scales_ptr + at, own * step)
        _put(scales_ptr + D + at, zero)
        tl.store(codes_ptr + n, _joined(codes, D // 2, 2, 4))


@triton.jit
def _store_values(
    source_ptr, mean, size, token, dim, slot, codes_ptr, scales_ptr,
    D: tl.constexpr, BITS: tl.constexpr,
):  # fmt: skip
    """Half of the tokens at a time: the lower bytes of words, then the upper ones."""
    LINES: tl.constexpr = D * BITS // 8
    t, c, j = tl.arange(0, _HALF), tl.arange(0, D), tl.arange(0, LINES)
    scales_ptr += slot * (D + 2 * _TILE)
    codes_ptr += slot * (LINES * _TILE) + j[None, :] * _TILE + 2 * t[:, None]
    _put(scales_ptr + c, dim * size)
    for n in range(2):
        at = n * _HALF + t
        own = _half(token, n, _TILE)
        y = tl.load(source_ptr + at[:, None] * D + c[None, :]).to(tl.float32)
        y = (y - mean[None, :]) / size / own[:, None] / dim[None, :]
        codes, step, zero = _grid(y, 1, BITS)
        _put(scales_ptr + D + at, own * step)
        _put(scales_ptr + D + _TILE + at, zero)
        tl.store(codes_ptr + n, _joined(codes, D, 8 // BITS, BITS))


@triton.jit(do_not_specialize=["rows", "start"])
def _kvarn_pack(
    pos_ptr,
    rows,
    sink_ptr,
    source_ptr,
    start,
    k_codes_ptr,
    v_codes_ptr,
    k_scales_ptr,
    v_scales_ptr,
    means_ptr,
    source_rows,
    tiles,
    KV_HEADS: tl.constexpr,
    D: tl.constexpr,
    BITS: tl.constexpr,
    PDL: tl.constexpr,
):
    let_next_start(PDL)
    wait_for_inputs(PDL)
    pos = tl.load(pos_ptr).to(tl.int32)
    first = tl.maximum(tl.maximum(pos - 1 - _LAG, 0) // _TILE, 1)
    tile = first + tl.program_id(0)
    if tile >= tl.minimum(tl.maximum(pos + rows - 1 - _LAG, 0) // _TILE, tiles):
        return
    kv, which = tl.program_id(1), tl.program_id(2)
    own = which * KV_HEADS + kv
    t, c = tl.arange(0, _TILE), tl.arange(0, D)
    local = t[:, None] * D + c[None, :]
    mean = tl.sum(tl.load(sink_ptr + own * _TILE * D + local).to(tl.float32), axis=0) / _TILE
    tl.store(means_ptr + own * D + c, mean)
    tl.debug_barrier()
    at = (tile * _TILE - start) % source_rows
    source_ptr += (own.to(tl.int64) * source_rows + at) * D
    square = tl.load(source_ptr + local).to(tl.float32) - mean[None, :]
    square *= square
    size = tl.sum(tl.sum(square, axis=1), axis=0) / (_TILE * D)
    size = tl.where(size > 0.0, size, 1.0)
    token, dim = _balance(square / size, D)
    size = tl.sqrt(size)
    mean = tl.load(means_ptr + own * D + c)  # not held meanwhile
    slot = kv.to(tl.int64) * tiles + tile
    if which == 0:
        _store_keys(source_ptr, mean, size, token, dim, slot, k_codes_ptr, k_scales_ptr, D)
    else:
        _store_values(source_ptr, mean, size, token, dim, slot, v_codes_ptr, v_scales_ptr, D, BITS)


@variant("kvarn_pack", "triton", fake, MUTATES, support=replace(SUPPORT, powers={"d_head": 16}))
def kvarn_pack(
    pos: Tensor,
    rows: int,
    sink: Tensor,
    source: Tensor,
    start: int,
    k_codes: Tensor,
    v_codes: Tensor,
    k_scales: Tensor,
    v_scales: Tensor,
    means: Tensor,
) -> None:
    """As the reference, for heads whose width is a power of two from 16 to 256; nothing is read on
    the host.
    """
    _, kv_heads, source_rows, d = source.shape
    named = {"sink": sink, "source": source, "k_scales": k_scales, "v_scales": v_scales}
    check("kvarn_pack", 1, k_codes=k_codes, v_codes=v_codes, means=means, **named)
    same_dtype("kvarn_pack", **named)
    if d & (d - 1) or not 16 <= d <= 256:
        raise ValueError(
            f"kvarn_pack: triton needs a head width that is a power of two from 16 to 256, got {d};"
            " use kernel.kvarn_pack=reference"
        )
    overlap = dependent_launch(source.device)
    _kvarn_pack[(-(-rows // TILE), kv_heads, 2)](
        pos,
        rows,
        sink,
        source,
        start,
        k_codes.view(torch.uint8),
        v_codes.view(torch.uint8),
        k_scales,
        v_scales,
        means,
        source_rows,
        k_codes.shape[1],
        KV_HEADS=kv_heads,
        D=d,
        BITS=value_bits(v_codes, d),
        PDL=overlap,
        num_warps=8,
        enable_fp_fusion=False,
        launch_pdl=overlap,
    )
