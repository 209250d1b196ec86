"""Caches of 8 and 4 bits on Hopper: codes are converted once, in registers, for all rows of a call.

Keys and values are the lines of both products, whose left operands tensor cores take from
registers: a thread loads just the codes of its own part of an operand, brought to shared memory by
bulk copies ahead of it, and turns them into fp16 two at a time. The right operands, queries and a
block's weights, are in shared memory: as many columns as a program has vectors (a row's query head,
in order of rows, then heads), in one part or two, since a part's width is a power of two. A column
never meets another one, so neither the parts nor the number of rows enter its sums.

Line order is free, so that no code moves between threads. Keys: a thread has 16 neighbouring bytes
of a key at a time, whose codes are the inputs 16 s + 8 h + 2 t + b of a product over 64 dims, t
being its lane; queries are stored in that order (`_dims`). Values: a thread has words of four dims
of neighbouring keys; dim 4 (8 w + g) + 2 i + j of a head is line 128 i + 16 w + 8 j + g.

How keys are dealt to programs, how partial results are folded and what scales do is as in triton.py
and fold.py, save that a value's scale enters its weight as a power of two, and that sums over keys
and over partial results are trees.
"""
# pyright: reportGeneralTypeIssues=false, reportCallIssue=false, reportOperatorIssue=false
# pyright: reportAttributeAccessIssue=false, reportIndexIssue=false

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from triton import constexpr_function
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from kernels.attention_decode.reference import fake
from kernels.attention_decode.triton import LOG2_E
from kernels.codes import INT4_WORDS, STEP, TINY, format_of
from kernels.define import MAX_ROWS, variant
from kernels.gpu import (
    SUPPORT,
    check,
    counters,
    dependent_launch,
    let_next_start,
    power_of_two,
    processors,
    same_dtype,
    wait_for_inputs,
)
from kernels.hadamard import rotation_back
from kernels.rounding import FOUR_BYTES, rounded

BLOCK = 128  # keys at a time: 16 for each of 8 warps
D = 256
COLUMNS = 96  # most of a program

# named differently in Triton 3.6 and 3.9
_barrier = getattr(gl, "barrier", None) or gl.thread_barrier
_viewed = getattr(gl.shared_memory_descriptor, "reinterpret", None) or (
    gl.shared_memory_descriptor._reinterpret
)
_bulk_copy = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared

_BLOCK = gl.constexpr(BLOCK)
_HALF = gl.constexpr(BLOCK // 2)
_D = gl.constexpr(D)
_WARPS = gl.constexpr(8)
_STEP = STEP
_TINY = gl.constexpr(TINY)

# four codes of a key
_FLOAT8_KEYS = gl.constexpr("""{
    .reg .b16 a, b;
    .reg .b32 low, high;
    mov.b32 {a, b}, $4;
    cvt.rn.f16x2.e4m3x2 low, a;
    cvt.rn.f16x2.e4m3x2 high, b;
    mov.b32 {$0, $1}, low;
    mov.b32 {$2, $3}, high;
}""")
# codes as the low bits of 1024 + 128 + code in fp16
_INT8_KEYS = gl.constexpr("""{
    .reg .b32 word, low, high, bias, top;
    mov.b32 bias, 0xE480E480;
    mov.b32 top, 0x64646464;
    xor.b32 word, $4, 0x80808080;
    prmt.b32 low, word, top, 0x4140;
    prmt.b32 high, word, top, 0x4342;
    add.rn.f16x2 low, low, bias;
    add.rn.f16x2 high, high, bias;
    mov.b32 {$0, $1}, low;
    mov.b32 {$2, $3}, high;
}""")
_FLOAT8_VALUES = gl.constexpr(FOUR_BYTES)  # the same four dims of two keys
_INT8_VALUES = gl.constexpr("""{
    .reg .b32 low, high, n, bias;
    mov.b32 bias, 0xE480E480;
    prmt.b32 low, $4, $5, 0x5410;
    prmt.b32 high, $4, $5, 0x7632;
    lop3.b32 n, low, 0x00FF00FF, 0x64806480, 0x6A;
    add.rn.f16x2 $0, n, bias;
    shr.u32 low, low, 8;
    lop3.b32 n, low, 0x00FF00FF, 0x64806480, 0x6A;
    add.rn.f16x2 $1, n, bias;
    lop3.b32 n, high, 0x00FF00FF, 0x64806480, 0x6A;
    add.rn.f16x2 $2, n, bias;
    shr.u32 high, high, 8;
    lop3.b32 n, high, 0x00FF00FF, 0x64806480, 0x6A;
    add.rn.f16x2 $3, n, bias;
}""")
_INT4 = gl.constexpr(INT4_WORDS)


@gluon.jit
def _parts(words, asm: gl.constexpr, registers: gl.constexpr, pack: gl.constexpr):
    """Words -> their codes in fp16 [..., 2, 2], the lowest bit of a code's place first."""
    a, b, c, d = gl.inline_asm_elementwise(
        asm,
        registers,
        [words],
        dtype=(gl.float16, gl.float16, gl.float16, gl.float16),
        is_pure=True,
        pack=pack,
    )
    return gl.join(gl.join(a, b), gl.join(c, d))


@gluon.jit
def _keys(words, FORMAT: gl.constexpr):
    """Words [keys, 16] -> the operand [keys, 64]; nothing moves between threads."""
    KEYS: gl.constexpr = words.shape[0]
    MMA: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [_WARPS, 1], [16, 16, 16])
    if FORMAT == "int4":
        x = _parts(words, _INT4, "=r,=r,=r,=r,r", 2)  # key, (t, u, b), c0, c1
        x = x.reshape(KEYS, 4, 2, 2, 2, 2).permute(0, 2, 5, 4, 1, 3)
    else:  # key, (t, s), b, h
        if FORMAT == "int8":
            x = _parts(words, _INT8_KEYS, "=h,=h,=h,=h,r", 1)
        else:
            x = _parts(words, _FLOAT8_KEYS, "=h,=h,=h,=h,r", 1)
        x = x.reshape(KEYS, 4, 4, 2, 2).permute(0, 2, 4, 1, 3)
    return gl.convert_layout(
        x.reshape(KEYS, 64), gl.DotOperandLayout(0, MMA, 2), assert_trivial=True
    )


@gluon.jit
def _values(words, FORMAT: gl.constexpr):
    """Words [64, keys] of four dims -> the operand [256, keys]; nothing moves between threads."""
    KEYS: gl.constexpr = words.shape[1]
    MMA: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [_WARPS, 1], [16, 16, 16])
    if FORMAT == "int4":
        x = _parts(words, _INT4, "=r,=r,=r,=r,r", 2)
    elif FORMAT == "int8":
        x = _parts(words, _INT8_VALUES, "=r,=r,=r,=r,r,r", 2)
    else:
        x = _parts(words, _FLOAT8_VALUES, "=r,=r,=r,=r,r,r", 2)
    x = x.reshape(8, 8, KEYS, 2, 2).permute(4, 0, 3, 1, 2).reshape(_D, KEYS)
    return gl.convert_layout(x, gl.DotOperandLayout(0, MMA, 2), assert_trivial=True)


@gluon.jit
def _dims(product: gl.constexpr, i, FORMAT: gl.constexpr):
    """The dims that a product of key scores has as its inputs i."""
    b = i % 2
    t = i // 2 % 4
    h = i // 8 % 2
    s = i // 16
    if FORMAT == "int4":
        d = 64 * t + 16 * product + s // 2 * 8 + 4 * b + s % 2 * 2 + h
    else:
        d = 32 * t + product // 2 * 128 + product % 2 * 16 + 4 * s + 2 * h + b
    return d


@gluon.jit
def _raw_keys(stage, FORMAT: gl.constexpr):
    """A block's codes in shared memory -> words [keys, 16] of its four products."""
    if FORMAT == "int4":
        L: gl.constexpr = gl.DistributedLinearLayout(
            [[0, 0, 1], [0, 0, 2], [0, 0, 4], [0, 8, 0], [0, 0, 8]],
            [[0, 0, 16], [0, 0, 32], [0, 1, 0], [0, 2, 0], [0, 4, 0]],
            [[0, 16, 0], [0, 32, 0], [0, 64, 0]],
            [],
            [1, _BLOCK, 64],
        )
        halves = _viewed(stage, gl.int16, [1, _BLOCK, 64], gl.NVMMASharedLayout(128, 16, 3))
        x = halves.load(L).reshape(_BLOCK, 4, 2, 2, 4).permute(0, 1, 4, 3, 2)
    else:
        L: gl.constexpr = gl.DistributedLinearLayout(
            [[0, 0, 1], [0, 0, 2], [0, 8, 0], [0, 0, 4], [1, 0, 0]],
            [[0, 0, 8], [0, 0, 16], [0, 1, 0], [0, 2, 0], [0, 4, 0]],
            [[0, 16, 0], [0, 32, 0], [0, 64, 0]],
            [],
            [2, _BLOCK, 32],
        )
        x = stage.load(L).reshape(2, _BLOCK, 4, 2, 4).permute(1, 2, 4, 3, 0)
    low, high = gl.split(x.reshape(_BLOCK, 16, 2, 2))
    a, b = gl.split(low)
    c, d = gl.split(high)
    return a, b, c, d


@gluon.jit
def _raw_values(stage, FORMAT: gl.constexpr):
    """A block's codes in shared memory -> words [64, 64] of its first half's keys, its second's."""
    if FORMAT == "int4":
        L: gl.constexpr = gl.DistributedLinearLayout(
            [[0, 1, 0], [0, 8, 0], [0, 16, 0], [0, 32, 0], [0, 64, 0]],
            [[0, 2, 0], [0, 4, 0], [0, 0, 1], [0, 0, 2], [0, 0, 4]],
            [[0, 0, 8], [0, 0, 16], [0, 0, 32]],
            [],
            [1, _BLOCK, 64],
        )
        halves = _viewed(stage, gl.int16, [1, _BLOCK, 64], gl.NVMMASharedLayout(128, 16, 3))
        x = halves.load(L).reshape(1, 2, _HALF, 64)
    else:
        L: gl.constexpr = gl.DistributedLinearLayout(
            [[0, 1, 0], [0, 8, 0], [0, 16, 0], [0, 32, 0], [0, 64, 0]],
            [[0, 2, 0], [0, 4, 0], [0, 0, 1], [0, 0, 2], [0, 0, 4]],
            [[0, 0, 8], [0, 0, 16], [1, 0, 0]],
            [],
            [2, _BLOCK, 32],
        )
        x = stage.load(L).reshape(2, 2, _HALF, 32)
    a, b = gl.split(x.permute(0, 3, 2, 1).reshape(64, _HALF, 2))
    return a, b


@gluon.jit
def _times(a, bs, sums, USE: gl.constexpr):
    """Add a product to each part's sums, under way."""
    out = ()
    for i in gl.static_range(len(bs)):
        out = out + (_product(a, bs[i], sums[i], USE),)
    return out


@gluon.jit
def _product(a, b, acc, USE: gl.constexpr):
    N: gl.constexpr = b.shape[1]
    MMA: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [_WARPS, 1], [16, N, 16])
    a = gl.convert_layout(a, gl.DotOperandLayout(0, MMA, 2), assert_trivial=True)
    return warpgroup_mma(a, b, acc, use_acc=USE, is_async=True)


@gluon.jit
def _ended(sums, pending: gl.constexpr):
    """Sums of which at most `pending` products are still under way."""
    out = warpgroup_mma_wait(pending, deps=sums)
    if len(sums) == 1:
        out = (out,)
    return out


@gluon.jit
def _stage_queries(
    q_ptr, shared, first, vectors, kv, HEADS: gl.constexpr, GROUP: gl.constexpr,
    FORMAT: gl.constexpr,
):  # fmt: skip
    """Queries of a part's columns, the first of them `first`, in the order of the products."""
    N: gl.constexpr = shared.shape[1]
    Q: gl.constexpr = gl.BlockedLayout([1, 2], [1, 32], [_WARPS, 1], [1, 0])
    vector = first + gl.arange(0, N, gl.SliceLayout(1, Q))
    i = gl.arange(0, 64, gl.SliceLayout(0, Q))
    at = (vector // GROUP * HEADS + kv * GROUP + vector % GROUP)[:, None] * _D
    live = (vector < vectors)[:, None]
    for product in gl.static_range(4):
        d = _dims(product, i, FORMAT)[None, :]
        q = gl.load(q_ptr + (at + d), mask=live & (d >= 0), other=0.0)
        shared.index(product).store(q.to(gl.float16))


@gluon.jit
def _scales(k_scale_ptr, v_scale_ptr, at):
    """Of a block's keys and values, a line each."""
    MMA: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [_WARPS, 1], [16, 16, 16])
    at = at + gl.arange(0, _BLOCK, gl.SliceLayout(1, MMA))
    return gl.load(k_scale_ptr + at), gl.load(v_scale_ptr + at)


@gluon.jit
def _weigh(
    s, peaks, rows, total, factors, scale, partial, limit, capacity, SCALED: gl.constexpr
):  # fmt: skip
    """Weights of a block's scores against the highest so far, and what becomes of earlier sums.

    Highest is what is so after a value's scale. `limit`, the first key that row 0 does not see, and
    `capacity` count from where the block starts.
    """
    N: gl.constexpr = s.shape[1]
    MMA: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [_WARPS, 1], [16, N, 16])
    LINE: gl.constexpr = gl.SliceLayout(1, MMA)
    COLUMN: gl.constexpr = gl.SliceLayout(0, MMA)
    own, lift, inverse = factors
    peak = peaks.load(COLUMN)
    if SCALED:
        own = gl.convert_layout(own, LINE, assert_trivial=True)
        lift = gl.convert_layout(lift, LINE, assert_trivial=True)
        own, lift = gl.broadcast(own[:, None], s)[0], gl.broadcast(lift[:, None], s)[0]
        s = gl.fma(s, own, lift)
    else:
        s = s * scale
    if partial:
        keys = gl.minimum(limit + rows.load(COLUMN), capacity)
        local = gl.arange(0, _BLOCK, LINE)
        s = gl.where(local[:, None] < keys[None, :], s, float("-inf"))
    high = gl.maximum(peak, gl.max(s, axis=0))
    base = gl.where(high == float("-inf"), 0.0, high)
    weight = gl.exp2(s - base[None, :])
    keep = gl.exp2(peak - base)
    mass = weight
    if SCALED:
        inverse = gl.convert_layout(inverse, LINE, assert_trivial=True)
        mass = weight * inverse[:, None]
    # the sums of a thread's own two keys; all of them meet after the last block
    kept = gl.max(gl.broadcast(keep[None, :], s)[0].reshape(8, 2, 8, N), axis=1)
    total = total * kept + gl.sum(mass.reshape(8, 2, 8, N), axis=1)
    peaks.store(high)
    return weight, keep, total


@gluon.jit
def _bring(tiles, line, n, rounds, ring, full, SPLITS: gl.constexpr, AHEAD: gl.constexpr):
    """The n-th block of a program, if there is one, to its stage of a ring."""
    BYTES: gl.constexpr = tiles.block_type.shape[0] * _BLOCK * 128
    if n < rounds:
        bar = full.index(n % AHEAD)
        mbarrier.expect(bar, BYTES)
        _bulk_copy(tiles, [0, line + n * (SPLITS * _BLOCK), 0], bar, ring.index(n % AHEAD))


@gluon.jit
def _write(y_ptr, gate_ptr, at, mask, out, total):
    """y at `at`: the sums over their weights, times the gate; both factors rounded."""
    dtype: gl.constexpr = y_ptr.dtype.element_ty
    gate = gl.load(gate_ptr + at, mask=mask, other=0.0).to(gl.float32)
    y = rounded(out * (1.0 / total), dtype) * rounded(1.0 / (1.0 + gl.exp(-gate)), dtype)
    gl.store(y_ptr + at, rounded(y, dtype).to(dtype), mask=mask)


@gluon.jit
def _fold(
    slot,
    splits,
    column,
    vector,
    kv,
    gate_ptr,
    y_ptr,
    out_ptr,
    peak_ptr,
    total_ptr,
    HEADS: gl.constexpr,
    GROUP: gl.constexpr,
    WIDTH: gl.constexpr,
    SLOTS: gl.constexpr,
    ROTATED: gl.constexpr,
):
    """Write y for one vector: the sum of all its partial results, in one fixed tree."""
    L: gl.constexpr = gl.BlockedLayout([1, 4], [1, 32], [_WARPS // 2, 2], [1, 0])
    W: gl.constexpr = gl.BlockedLayout([1, 8], [1, 32], [_WARPS, 1], [1, 0])  # a line to a warp
    part = gl.arange(0, SLOTS, gl.SliceLayout(1, L))
    d = gl.arange(0, _D, gl.SliceLayout(0, L))[None, :]
    at = (slot + part) * WIDTH + column
    live = part < splits
    peaks = gl.load(peak_ptr + at, mask=live, other=float("-inf"), cache_modifier=".cg")
    masses = gl.load(total_ptr + at, mask=live, other=0.0, cache_modifier=".cg")
    own = live[:, None] & (d >= 0)
    parts = gl.load(out_ptr + at[:, None] * _D + d, mask=own, other=0.0, cache_modifier=".cg")
    peak = gl.max(peaks, axis=0)
    shares = gl.exp2(peaks - gl.where(peak == float("-inf"), 0.0, peak))
    total = gl.sum(masses * shares, axis=0)
    out = gl.sum(parts * shares[:, None], axis=0)
    out = gl.convert_layout(out, gl.SliceLayout(0, W))[None, :]
    d = gl.arange(0, _D, gl.SliceLayout(0, W))[None, :]
    if ROTATED:
        out = rotation_back(out, d, _D)
    at = (vector // GROUP * HEADS + kv * GROUP + vector % GROUP) * _D + d
    _write(y_ptr, gate_ptr, at, d >= 0, out, total)


@constexpr_function
def _results(columns: int) -> gl.DistributedLinearLayout:
    """Of [256, columns] as the product leaves it, with a thread's four dims as neighbours."""
    further = [[0, 1 << i] for i in range(3, columns.bit_length() - 1)]
    return gl.DistributedLinearLayout(
        [[1, 0], [2, 0], [0, 1], *further],
        [[0, 2], [0, 4], [4, 0], [8, 0], [16, 0]],
        [[32, 0], [64, 0], [128, 0]],
        [],
        [D, columns],
    )


@gluon.jit
def _leave(
    out,
    peaks,
    total,
    first,
    vectors,
    kv,
    alone,
    slot,
    column,
    gate_ptr,
    y_ptr,
    out_ptr,
    peak_ptr,
    total_ptr,
    HEADS: gl.constexpr,
    GROUP: gl.constexpr,
    WIDTH: gl.constexpr,
    FORMAT: gl.constexpr,
):
    """A part's sums: its vectors' y where a program is `alone`, partial results otherwise."""
    N: gl.constexpr = out.shape[1]
    OUT: gl.constexpr = _results(N)
    C: gl.constexpr = gl.SliceLayout(0, OUT)
    total = gl.convert_layout(gl.sum(gl.sum(total, axis=0), axis=0), C)
    out = out.reshape(2, 8, 2, 8, N).permute(1, 3, 0, 2, 4).reshape(_D, N)
    out = gl.convert_layout(out, OUT, assert_trivial=True)  # four neighbouring dims to a thread
    local = gl.arange(0, N, C)
    d = gl.arange(0, _D, gl.SliceLayout(1, OUT))[:, None]
    vector = first + local
    live = vector < vectors
    wide = live[None, :] & (d >= 0)
    if alone:
        place = (vector // GROUP * HEADS + kv * GROUP + vector % GROUP)[None, :] * _D + d
        _write(y_ptr, gate_ptr, place, wide, out, total[None, :])
    else:
        at = slot * WIDTH + column + local
        gl.store(peak_ptr + at, peaks.load(C), mask=live)
        gl.store(total_ptr + at, total, mask=live)
        UNIT: gl.constexpr = _STEP if FORMAT == "int4" else 1.0
        gl.store(out_ptr + at[None, :] * _D + d, out * UNIT, mask=wide)


@gluon.jit(do_not_specialize=["vectors", "folders"])
def _attend_narrow(
    q_ptr,
    gate_ptr,
    keys_tiles,  # words of codes [parts of a head, keys of all heads, 32]
    values_tiles,
    k_scale_ptr,
    v_scale_ptr,
    pos_ptr,
    y_ptr,
    out_ptr,
    peak_ptr,
    total_ptr,
    arrived_ptr,
    vectors,  # of a key-value head
    folders,
    capacity,
    scale,
    HEADS: gl.constexpr,
    KV_HEADS: gl.constexpr,
    PARTS: gl.constexpr,  # columns of each part
    SPLITS: gl.constexpr,
    SLOTS: gl.constexpr,
    KEYS_AHEAD: gl.constexpr,
    VALUES_AHEAD: gl.constexpr,
    FORMAT: gl.constexpr,
    PDL: gl.constexpr,
):
    GROUP: gl.constexpr = HEADS // KV_HEADS
    WIDTH: gl.constexpr = PARTS[0] if len(PARTS) == 1 else PARTS[0] + PARTS[1]
    SCALED: gl.constexpr = FORMAT != "float8"
    ks = gl.allocate_shared_memory(
        gl.int32, [KEYS_AHEAD] + keys_tiles.block_type.shape, keys_tiles.layout
    )
    vs = gl.allocate_shared_memory(
        gl.int32, [VALUES_AHEAD] + values_tiles.block_type.shape, values_tiles.layout
    )
    has_keys = gl.allocate_shared_memory(gl.int64, [KEYS_AHEAD, 1], mbarrier.MBarrierLayout())
    has_values = gl.allocate_shared_memory(gl.int64, [VALUES_AHEAD, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(KEYS_AHEAD):
        mbarrier.init(has_keys.index(i), count=1)
    for i in gl.static_range(VALUES_AHEAD):
        mbarrier.init(has_values.index(i), count=1)
    _barrier()
    qs = ()
    ps = ()
    peaks = ()  # in shared memory, for they would crowd the registers
    seen = ()  # and so are the rows of columns
    for i in gl.static_range(len(PARTS)):
        q_shared = gl.allocate_shared_memory(
            gl.float16, [4, PARTS[i], 64], gl.NVMMASharedLayout(128, 16, 2)
        )
        p_shared = gl.allocate_shared_memory(
            gl.float16, [1, _BLOCK, PARTS[i]], gl.NVMMASharedLayout(min(128, 2 * PARTS[i]), 16, 2)
        )
        row_shared = gl.allocate_shared_memory(
            gl.int32, [PARTS[i]], gl.SwizzledSharedLayout(1, 1, 1, [0])
        )
        seen = seen + (row_shared,)
        peak_shared = gl.allocate_shared_memory(
            gl.float32, [PARTS[i]], gl.SwizzledSharedLayout(1, 1, 1, [0])
        )
        qs = qs + (q_shared,)
        ps = ps + (p_shared,)
        peaks = peaks + (peak_shared,)
    above = gl.program_id(0) * WIDTH
    split = gl.program_id(1)
    kv = gl.program_id(2)
    let_next_start(PDL)
    wait_for_inputs(PDL)
    first = gl.load(pos_ptr).to(gl.int32)
    end = (gl.minimum(above + WIDTH, vectors) - 1) // GROUP + 1  # the first row that is not here
    stop = gl.minimum(first + end, capacity)
    blocks = (stop + _BLOCK - 1) // _BLOCK
    if split >= blocks:
        return
    rounds = (blocks - split + SPLITS - 1) // SPLITS
    line = kv * capacity + split * _BLOCK
    for i in gl.static_range(KEYS_AHEAD):
        _bring(keys_tiles, line, i, rounds, ks, has_keys, SPLITS, KEYS_AHEAD)
        _bring(values_tiles, line, i, rounds, vs, has_values, SPLITS, VALUES_AHEAD)
    for i in gl.static_range(KEYS_AHEAD, VALUES_AHEAD):
        _bring(values_tiles, line, i, rounds, vs, has_values, SPLITS, VALUES_AHEAD)
    UNIT: gl.constexpr = _STEP if FORMAT == "int4" else 1.0
    if SCALED:
        own, size = _scales(k_scale_ptr, v_scale_ptr, line)
    else:
        own, size = scale, scale
    _stage_queries(q_ptr, qs[0], above, vectors, kv, HEADS, GROUP, FORMAT)
    if len(PARTS) == 2:
        _stage_queries(q_ptr, qs[1], above + PARTS[0], vectors, kv, HEADS, GROUP, FORMAT)
    totals = ()
    outs = ()
    zeros = ()
    for i in gl.static_range(len(PARTS)):
        begun = _begin(PARTS[i], above + i * PARTS[0], GROUP)
        peaks[i].store(begun[0])
        seen[i].store(begun[4])
        totals = totals + (begun[1],)
        outs = outs + (begun[2],)
        zeros = zeros + (begun[3],)
    fence_async_shared()
    _barrier()
    mbarrier.wait(has_keys.index(0), 0)
    raw = _raw_keys(ks.index(0), FORMAT)
    for n in range(0, rounds):
        none = n >> 30  # 0: what it is added to is not held in registers from ahead of the loop
        scores = zeros
        for product in gl.static_range(4):
            bs = ()
            for i in gl.static_range(len(PARTS)):
                bs = bs + (qs[i].index(product + none).permute((1, 0)),)
            scores = _times(_keys(raw[product], FORMAT), bs, scores, product > 0)
            if product > 0:  # at most two products' operands are in registers at a time
                scores = _ended(scores, len(PARTS))
        if SCALED:
            size = gl.maximum(size, _TINY)  # past the live ones it may be 0
            factors = own * (scale * UNIT), gl.log2(size), 1.0 / size
            near = gl.minimum(n + 1, rounds - 1)
            own, size = _scales(k_scale_ptr, v_scale_ptr, line + near * (SPLITS * _BLOCK))
        else:
            factors = own, own, own
        scores = _ended(scores, 0)
        start = (split + n * SPLITS) * _BLOCK
        partial = start + _BLOCK > gl.minimum(first + above // GROUP + 1, capacity)
        kept = ()
        sums = ()
        for i in gl.static_range(len(PARTS)):
            weight, keep, total = _weigh(
                scores[i], peaks[i], seen[i], totals[i], factors, scale, partial,
                first + 1 - start, capacity - start, SCALED,
            )  # fmt: skip
            ps[i].index(none).store(weight.to(gl.float16))
            kept = kept + (outs[i] * keep[None, :],)
            sums = sums + (total,)
        totals = sums
        mbarrier.wait(has_values.index(n % VALUES_AHEAD), n // VALUES_AHEAD & 1)
        v0, v1 = _raw_values(vs.index(n % VALUES_AHEAD), FORMAT)
        fence_async_shared()
        _barrier()  # weights are there, and this block's codes are in registers
        _bring(keys_tiles, line, n + KEYS_AHEAD, rounds, ks, has_keys, SPLITS, KEYS_AHEAD)
        _bring(values_tiles, line, n + VALUES_AHEAD, rounds, vs, has_values, SPLITS, VALUES_AHEAD)
        lower = ()
        upper = ()
        for i in gl.static_range(len(PARTS)):
            lower = lower + (ps[i].index(none).slice(0, _HALF, dim=0),)
            upper = upper + (ps[i].index(none).slice(_HALF, _HALF, dim=0),)
        outs = _ended(_times(_values(v0, FORMAT), lower, kept, True), 0)
        outs = _times(_values(v1, FORMAT), upper, outs, True)
        near = gl.minimum(n + 1, rounds - 1)
        mbarrier.wait(has_keys.index(near % KEYS_AHEAD), near // KEYS_AHEAD & 1)
        raw = _raw_keys(ks.index(near % KEYS_AHEAD), FORMAT)
        outs = _ended(outs, 0)

    splits = gl.minimum(blocks, SPLITS)
    group = gl.program_id(0) * KV_HEADS + kv
    slot = group * SPLITS
    # rotated sums are turned back in `_fold`; Triton 3.6 takes no constant here
    alone = splits == (0 if FORMAT == "int4" else 1)
    column = 0
    for i in gl.static_range(len(PARTS)):
        _leave(
            outs[i], peaks[i], totals[i], above + column, vectors, kv, alone, slot + split, column,
            gate_ptr, y_ptr, out_ptr, peak_ptr, total_ptr, HEADS, GROUP, WIDTH, FORMAT,
        )  # fmt: skip
        column += PARTS[i]
    if alone:
        return
    arrived_ptr += group
    mine = gl.minimum(WIDTH, vectors - above)
    folders = gl.minimum(gl.minimum(splits, folders), mine)
    _barrier()  # all that this program wrote, before its arrival
    arrived = gl.atomic_add(arrived_ptr, 1, sem="acq_rel") + 1
    if gl.where(folders == 1, arrived < splits, split + folders < splits):
        return
    while arrived < splits:
        arrived = gl.atomic_add(arrived_ptr, 0, sem="acquire")
    column = gl.where(folders == 1, 0, split + folders - splits)
    for place in range(column, mine, folders):
        _fold(
            slot, splits, place, above + place, kv, gate_ptr, y_ptr, out_ptr, peak_ptr, total_ptr,
            HEADS, GROUP, WIDTH, SLOTS, FORMAT == "int4",
        )  # fmt: skip
    if gl.atomic_add(arrived_ptr, 1, sem="relaxed") == splits + folders - 1:
        gl.store(arrived_ptr, 0)


@gluon.jit
def _begin(N: gl.constexpr, first, GROUP: gl.constexpr):
    """A part's peaks, sums of weights, of values, scores ahead of the first block; its rows."""
    MMA: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [_WARPS, 1], [16, N, 16])
    peak = gl.full([N], float("-inf"), gl.float32, gl.SliceLayout(0, MMA))
    scores = gl.zeros([_BLOCK, N], gl.float32, MMA)
    total = gl.sum(scores.reshape(8, 2, 8, N), axis=1)
    row = (first + gl.arange(0, N, gl.SliceLayout(0, MMA))) // GROUP
    return peak, total, gl.zeros([_D, N], gl.float32, MMA), scores, row


@dataclass(frozen=True)
class Plan:
    """How keys are dealt to programs. `splits` is numerics."""

    splits: int  # per key-value head, at most 64
    parts: tuple[int, ...]  # columns of a program, at most two powers of two from 16 on
    keys_ahead: int  # blocks that a program has in shared memory, beside those in registers
    values_ahead: int
    waiting: int  # programs that may wait for others: fewer than can run at a time


def plan(device: torch.device, kv_heads: int, vectors: int) -> Plan:
    """A program a processor, with all vectors of a call up to 96."""
    count = processors(device)
    splits = max(1, min(64, count // kv_heads))
    programs = -(-vectors // COLUMNS)
    least = -(-vectors // programs)
    parts = next(p for p in ((16,), (32, 16), (64, 32)) if sum(p) >= least)
    return Plan(splits, parts, 2, 2 if sum(parts) > 48 else 3, count - 1)


def _tiles(cache: Tensor) -> TensorDescriptor:
    """A cache's int32 words, BLOCK keys at a time; a part of a head is 128 bytes."""
    parts = cache.shape[2] * cache.itemsize // 128
    x = cache.view(torch.int32).view(-1, parts, 32).permute(1, 0, 2)
    layout = gl.NVMMASharedLayout(128, 32, 3)
    return TensorDescriptor(x, list(x.shape), [32, 32 * parts, 1], [parts, BLOCK, 32], layout)


def launch(
    q: Tensor,
    gate: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    pos: Tensor,
    chosen: Plan,
    form: str,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
) -> Tensor:
    rows, heads, d = q.shape
    kv_heads, capacity, _ = k_cache.shape
    group = heads // kv_heads
    columns = sum(chosen.parts)
    groups = -(-rows * group // columns)
    most = -(-MAX_ROWS * group // 16)
    slots = groups * kv_heads * chosen.splits * columns
    out = q.new_empty(slots, d, dtype=torch.float32)
    peak, total = (q.new_empty(slots, dtype=torch.float32) for _ in range(2))
    y = torch.empty_like(gate)
    overlap = dependent_launch(q.device)
    _attend_narrow[(groups, chosen.splits, kv_heads)](
        q,
        gate,
        _tiles(k_cache),
        _tiles(v_cache),
        q if k_scale is None else k_scale,  # never touched
        q if v_scale is None else v_scale,
        pos,
        y,
        out,
        peak,
        total,
        counters(q.device, most * kv_heads),
        rows * group,
        max(1, chosen.waiting // (groups * kv_heads)),
        capacity,
        d**-0.5 * LOG2_E,
        HEADS=heads,
        KV_HEADS=kv_heads,
        PARTS=chosen.parts,
        SPLITS=chosen.splits,
        SLOTS=power_of_two(chosen.splits),
        KEYS_AHEAD=chosen.keys_ahead,
        VALUES_AHEAD=chosen.values_ahead,
        FORMAT=form,
        PDL=overlap,
        num_warps=8,
        enable_fp_fusion=False,
        launch_pdl=overlap,
    )
    return y


@variant(
    "attention_decode",
    "gluon",
    fake,
    support=replace(
        SUPPORT,
        devices=("cuda",),
        capability=(9, 0),
        below=(10, 0),
        powers={"d_head": D},
        most={"d_head": D, "4-bit codes": 0},  # in a short text their rotation takes 19 to 320 us
        multiples={"capacity": BLOCK},
        narrow=True,
    ),
)
def attention_decode(
    q: Tensor,
    gate: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    pos: Tensor,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
) -> Tensor:
    """As triton, for caches of 8 and 4 bits and heads of 256 dims."""
    rows, heads, d = q.shape
    kv_heads, capacity, _ = k_cache.shape
    check("attention_decode", rows, q=q, gate=gate, k_cache=k_cache, v_cache=v_cache)
    same_dtype("attention_decode", q=q, gate=gate)
    form = format_of("attention_decode", q, k_cache, v_cache, k_scale, v_scale)
    if form == "plain" or d != D or heads % kv_heads or capacity % BLOCK:
        raise ValueError(
            f"attention_decode: gluon needs a cache of 8 or 4 bits, heads of {D} dims in whole"
            f" groups and a capacity that is a multiple of {BLOCK}, got {k_cache.dtype}, {heads} of"
            f" {d} over {kv_heads} and {capacity}; use kernel.attention_decode=triton"
        )
    chosen = plan(q.device, kv_heads, rows * (heads // kv_heads))
    return launch(q, gate, k_cache, v_cache, pos, chosen, form, k_scale, v_scale)
