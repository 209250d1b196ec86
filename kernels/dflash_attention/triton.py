"""One launch: splits of the window's keys, the last of which also has the new and the block's own.

Blocks of keys lie on an absolute grid of positions and are dealt round in turn to the splits. Keys
stand on the M side of both products, the packed query heads of a few rows on the N side. A split
leaves its partial result; the one that arrives last folds all of a head's in their order.

The programs of the last split and the first rows store the new keys and values. Others may read
those rows of the ring meanwhile, as whatever they hold, and give them no weight.
"""

import math
from dataclasses import dataclass, replace

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.define import MAX_ROWS, variant
from kernels.dflash_attention.reference import fake
from kernels.gpu import (
    INTERPRETED,
    SUPPORT,
    arrives_last,
    check,
    counters,
    dependent_launch,
    let_next_start,
    power_of_two,
    same_dtype,
    wait_for_inputs,
)
from kernels.rounding import PLAIN, rounded


@triton.jit
def _turned(x_ptr, at, live, gain_ptr, cos_ptr, sin_ptr, position, eps, HALF: tl.constexpr):
    """Heads of width 2 HALF at offsets `at` [n], normed and turned -> both halves [n, HALF].

    In fp32, rounded once at the end.
    """
    dtype = x_ptr.dtype.element_ty
    j = tl.arange(0, HALF)
    place = x_ptr + at[:, None] + j[None, :]
    a = tl.load(place, mask=live[:, None], other=0.0).to(tl.float32)
    b = tl.load(place + HALF, mask=live[:, None], other=0.0).to(tl.float32)
    square = tl.sum(a * a, axis=1) + tl.sum(b * b, axis=1)
    unit = tl.rsqrt(square / (2 * HALF) + eps)[:, None]
    a = a * unit * tl.load(gain_ptr + j).to(tl.float32)[None, :]
    b = b * unit * tl.load(gain_ptr + HALF + j).to(tl.float32)[None, :]
    angle = position[:, None] * HALF + j[None, :]
    cos = tl.load(cos_ptr + angle).to(tl.float32)
    sin = tl.load(sin_ptr + angle).to(tl.float32)
    low = rounded(a * cos - b * sin, dtype)
    high = rounded(b * cos + a * sin, dtype)
    return low, high


@triton.jit
def _operand(x, dtype: tl.constexpr):
    """As products take it: the interpreter multiplies fp32 alone."""
    if PLAIN:
        return x.to(tl.float32)
    else:
        return x.to(dtype)


@triton.jit
def _scores(k_low, k_high, q_low, q_high, visible, scale, PRECISION: tl.constexpr):
    """Scores [keys, columns], -inf where a column does not see a key."""
    scores = tl.zeros(visible.shape, tl.float32)
    scores = tl.dot(k_low, q_low, scores, input_precision=PRECISION)
    scores = tl.dot(k_high, q_high, scores, input_precision=PRECISION)
    return tl.where(visible, scores * scale, float("-inf"))


@triton.jit
def _take(scores, v, peak, total, out, dtype: tl.constexpr, PRECISION: tl.constexpr):
    """The running peak, total and out [d, columns] with some more keys; v [d, keys]."""
    high = tl.maximum(peak, tl.max(scores, axis=0))
    origin = tl.where(high == float("-inf"), 0.0, high)  # 0 where nothing was seen
    weight = tl.exp2(scores - origin[None, :])
    keep = tl.exp2(peak - origin)
    total = total * keep + tl.sum(weight, axis=0)
    out = tl.dot(v, _operand(weight, dtype), out * keep[None, :], input_precision=PRECISION)
    return high, total, out


@triton.jit(do_not_specialize=["rows", "new"])
def _attend_block(
    qkv_ptr,
    context_ptr,  # at this layer
    q_norm_ptr,
    k_norm_ptr,
    cos_ptr,
    sin_ptr,
    pos_ptr,
    count_ptr,
    k_ptr,
    v_ptr,
    y_ptr,
    out_ptr,
    peak_ptr,
    total_ptr,
    arrived_ptr,
    rows,
    new,
    context_stride,
    positions,
    window,
    scale,
    eps,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    D: tl.constexpr,
    SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
    EXTRA: tl.constexpr,  # keys of the new positions, and of the block: at most so many
    BLOCK: tl.constexpr,
    SPLITS: tl.constexpr,
    STAGES: tl.constexpr,
    CAUSAL: tl.constexpr,
    PRECISION: tl.constexpr,
    PDL: tl.constexpr,
):
    GROUP: tl.constexpr = HEADS // KV_HEADS
    COLUMNS: tl.constexpr = ROWS * WIDTH  # row-major (row, head of the group, padded)
    HALF: tl.constexpr = D // 2
    LINE: tl.constexpr = (HEADS + 2 * KV_HEADS) * D
    dtype = qkv_ptr.dtype.element_ty
    above = tl.program_id(0) * ROWS
    split = tl.program_id(1)
    kv = tl.program_id(2)
    let_next_start(PDL)
    wait_for_inputs(PDL)
    pos = tl.load(pos_ptr).to(tl.int32)
    known = pos - tl.load(count_ptr).to(tl.int32)  # positions below it are in the ring
    column = tl.arange(0, COLUMNS)
    row = above + column // WIDTH
    head = kv * GROUP + column % WIDTH
    live = (row < rows) & (column % WIDTH < GROUP)
    own = tl.minimum(pos + row, positions - 1)
    q_low, q_high = _turned(
        qkv_ptr, row * LINE + head * D, live, q_norm_ptr, cos_ptr, sin_ptr, own, eps, HALF
    )
    q_low = _operand(tl.trans(q_low), dtype)
    q_high = _operand(tl.trans(q_high), dtype)
    least = pos + row - window  # a column sees positions above it
    peak = tl.full([COLUMNS], float("-inf"), tl.float32)
    total = tl.zeros([COLUMNS], tl.float32)
    out = tl.zeros([D, COLUMNS], tl.float32)

    local = tl.arange(0, BLOCK)
    j = tl.arange(0, HALF)
    dim = tl.arange(0, D)
    k_ptr += kv * SIZE * D
    v_ptr += kv * SIZE * D
    keys = k_ptr + local[:, None] * D + j[None, :]
    values = v_ptr + local[None, :] * D + dim[:, None]
    begin = tl.maximum(pos + above - window + 1, 0) // BLOCK
    end = (tl.maximum(known, 0) + BLOCK - 1) // BLOCK
    for block in tl.range(begin + split, end, SPLITS, num_stages=STAGES):
        at = block * BLOCK % SIZE * D
        k_low = _operand(tl.load(keys + at), dtype)
        k_high = _operand(tl.load(keys + at + HALF), dtype)
        position = block * BLOCK + local
        visible = (position[:, None] < known) & (position[:, None] > least[None, :])
        scores = _scores(k_low, k_high, q_low, q_high, visible, scale, PRECISION)
        v = _operand(tl.load(values + at), dtype)
        peak, total, out = _take(scores, v, peak, total, out, dtype, PRECISION)

    if split == SPLITS - 1:
        i = tl.arange(0, EXTRA)
        # the new positions
        kept = i < tl.minimum(pos - known, new)
        position = known + i
        at = i * context_stride + kv * D
        turn = tl.minimum(tl.maximum(position, 0), positions - 1)
        low, high = _turned(context_ptr, at, kept, k_norm_ptr, cos_ptr, sin_ptr, turn, eps, HALF)
        value = context_ptr + at + KV_HEADS * D
        visible = kept[:, None] & (position[:, None] > least[None, :])
        scores = _scores(
            _operand(low, dtype), _operand(high, dtype), q_low, q_high, visible, scale, PRECISION
        )
        v = tl.load(value[None, :] + dim[:, None], mask=kept[None, :], other=0.0)
        peak, total, out = _take(scores, _operand(v, dtype), peak, total, out, dtype, PRECISION)
        if above == 0:
            slot = position % SIZE * D
            place = k_ptr + slot[:, None] + j[None, :]
            tl.store(place, low.to(dtype), mask=kept[:, None])
            tl.store(place + HALF, high.to(dtype), mask=kept[:, None])
            tl.store(v_ptr + slot[None, :] + dim[:, None], v, mask=kept[None, :])
        # the block itself
        there = i < rows
        at = i * LINE + (HEADS + kv) * D
        turn = tl.minimum(pos + i, positions - 1)
        low, high = _turned(qkv_ptr, at, there, k_norm_ptr, cos_ptr, sin_ptr, turn, eps, HALF)
        visible = there[:, None] & (column >= 0)[None, :]
        if CAUSAL:
            visible = visible & (i[:, None] <= row[None, :])
        scores = _scores(
            _operand(low, dtype), _operand(high, dtype), q_low, q_high, visible, scale, PRECISION
        )
        value = qkv_ptr + at + KV_HEADS * D
        v = tl.load(value[None, :] + dim[:, None], mask=there[None, :], other=0.0)
        peak, total, out = _take(scores, _operand(v, dtype), peak, total, out, dtype, PRECISION)

    first = (tl.program_id(0) * KV_HEADS + kv) * SPLITS  # of this head's partial results
    slot = (first + split) * COLUMNS + column
    tl.store(peak_ptr + slot, peak, mask=live)
    tl.store(total_ptr + slot, total, mask=live)
    tl.store(out_ptr + slot[None, :] * D + dim[:, None], out, mask=live[None, :])
    if arrives_last(arrived_ptr + tl.program_id(0) * KV_HEADS + kv, SPLITS):
        s = tl.arange(0, SPLITS)[:, None]
        every = (first + s) * COLUMNS + column[None, :]
        valid = live[None, :] & (s >= 0)
        peaks = tl.load(peak_ptr + every, mask=valid, other=0.0, cache_modifier=".cg")
        totals = tl.load(total_ptr + every, mask=valid, other=1.0, cache_modifier=".cg")
        share = tl.exp2(peaks - tl.max(peaks, axis=0)[None, :])
        total = tl.sum(totals * share, axis=0)
        peak = tl.max(peaks, axis=0)
        mask = live[:, None] & (dim >= 0)[None, :]
        y = tl.zeros([COLUMNS, D], tl.float32)
        for n in tl.static_range(SPLITS):
            at = (first + n) * COLUMNS + column
            part = tl.load(
                out_ptr + at[:, None] * D + dim[None, :], mask=mask, other=0.0,
                cache_modifier=".cg",
            )  # fmt: skip
            weight = tl.load(peak_ptr + at, mask=live, other=0.0, cache_modifier=".cg")
            y += part * tl.exp2(weight - peak)[:, None]
        place = row[:, None] * (HEADS * D) + head[:, None] * D + dim[None, :]
        tl.store(y_ptr + place, rounded(y / total[:, None], dtype).to(dtype), mask=mask)


@dataclass(frozen=True)
class Plan:
    splits: int  # a power of two
    block: int  # keys at a time
    rows: int  # of one program
    stages: int
    warps: int = 4


def plan(group: int, size: int) -> Plan:
    """Eight splits of 16 query heads fill an H200 with the released draft's block of 8 rows."""
    rows = max(1, 16 // power_of_two(group))
    return Plan(2 if INTERPRETED else 8, min(64, size), rows, 1 if INTERPRETED else 2)


@variant(
    "dflash_attention",
    "triton",
    fake,
    ("k_ring", "v_ring"),
    replace(SUPPORT, powers={"d_head": 32}),
)
def dflash_attention(
    qkv: Tensor,
    context: Tensor,
    layer: int,
    q_norm: Tensor,
    k_norm: Tensor,
    cos: Tensor,
    sin: Tensor,
    pos: Tensor,
    count: Tensor,
    k_ring: Tensor,
    v_ring: Tensor,
    window: int,
    causal: bool,
    eps: float,
) -> Tensor:
    """As the reference, for 1 to 16 rows and heads whose width is a power of two from 32 on.

    Rings of a power of two from 16 on, tables that turn whole heads.
    """
    rows, new = qkv.shape[0], context.shape[0]
    kv_heads, size, d = k_ring.shape
    heads = qkv.shape[1] // d - 2 * kv_heads
    named = {"qkv": qkv, "context": context, "k_ring": k_ring, "v_ring": v_ring}
    named |= {"q_norm": q_norm, "k_norm": k_norm, "cos": cos, "sin": sin}
    check("dflash_attention", max(rows, new), **named)
    same_dtype("dflash_attention", **named)
    if d < 32 or d & (d - 1) or heads % kv_heads or size < 16 or size & (size - 1):
        raise ValueError(
            "dflash_attention: triton needs a head width that is a power of two from 32 on, heads"
            f" in whole groups and a ring of a power of two from 16 on, got {d}, {heads} over"
            f" {kv_heads} and {size}; use kernel.dflash_attention=reference"
        )
    if 2 * cos.shape[1] != d or window + new > size:
        raise ValueError(
            f"dflash_attention: tables of {cos.shape[1]} angles for heads of {d}, or a ring of"
            f" {size} rows for a window of {window} and {new} new ones, do not fit"
        )
    group = heads // kv_heads
    chosen, width = plan(group, size), power_of_two(group)
    groups, most = -(-rows // chosen.rows), -(-MAX_ROWS // chosen.rows)
    slots = groups * kv_heads * chosen.splits * chosen.rows * width
    out = qkv.new_empty(slots, d, dtype=torch.float32)
    peak, total = (qkv.new_empty(slots, dtype=torch.float32) for _ in range(2))
    y = qkv.new_empty(rows, heads * d)
    overlap = dependent_launch(qkv.device)
    _attend_block[(groups, chosen.splits, kv_heads)](
        qkv,
        context[:, layer * 2 * kv_heads * d :],
        q_norm,
        k_norm,
        cos,
        sin,
        pos,
        count,
        k_ring,
        v_ring,
        y,
        out,
        peak,
        total,
        counters(qkv.device, most * kv_heads),
        rows,
        new,
        context.shape[1],
        cos.shape[0],
        window,
        d**-0.5 * math.log2(math.e),
        eps,
        HEADS=heads,
        KV_HEADS=kv_heads,
        D=d,
        SIZE=size,
        ROWS=chosen.rows,
        WIDTH=width,
        EXTRA=MAX_ROWS,
        BLOCK=chosen.block,
        SPLITS=chosen.splits,
        STAGES=chosen.stages,
        CAUSAL=causal,
        PRECISION="ieee" if qkv.dtype == torch.float32 else "tf32",
        PDL=overlap,
        num_warps=chosen.warps,
        enable_fp_fusion=False,
        launch_pdl=overlap,
    )
    return y
