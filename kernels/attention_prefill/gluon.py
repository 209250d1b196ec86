"""Two warpgroups of 64 rows each behind one producer warp, for Hopper.

The producer brings keys and values by bulk copies into two rings of shared memory, ahead of the
consumers, who give each block back when its product is done. A consumer starts the scores of the
next block before the sums over the current one, so the tensor cores have work while it turns scores
into weights; the other consumer, which it never meets, fills what is left.

Blocks, their order and a row's arithmetic are as in triton.py; keys past the span's end are read as
zeros. Registers: sums of 64 x 256 are 128 a thread, two blocks' scores and weights 80 more.
"""
# pyright: reportGeneralTypeIssues=false, reportCallIssue=false

from dataclasses import replace

from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from kernels.attention_prefill.reference import ALL, MUTATES, fake
from kernels.attention_prefill.triton import LOG2_E, checked, limits
from kernels.define import variant
from kernels.gluon_names import barrier, bulk_copy, viewed
from kernels.gpu import SUPPORT, dependent_launch, let_next_start, wait_for_inputs
from kernels.rounding import rounded

CONSUMERS = 2
LINES = 64  # rows of a consumer
BLOCK = 64  # keys
STAGES = 2

_CONSUMERS = gl.constexpr(CONSUMERS)
_LINES = gl.constexpr(LINES)
_BLOCK = gl.constexpr(BLOCK)
_STAGES = gl.constexpr(STAGES)


@gluon.jit
def _produce(keys, values, queries, ks, vs, qs, bars, line, column, kv, first, count, start):
    """Bring the queries, then blocks first .. first + count - 1, keys one ahead of values."""
    k_full, k_empty, v_full, v_empty, q_full = bars
    D: gl.constexpr = keys.block_type.shape[2]
    BYTES: gl.constexpr = 2 * _BLOCK * D
    mbarrier.expect(q_full, _CONSUMERS * 2 * _LINES * D)
    for i in gl.static_range(_CONSUMERS):
        bulk_copy(queries, [line + i * _LINES, column], q_full, qs.index(i))
    for n in range(0, count + 1):
        stage = n % _STAGES
        phase = n // _STAGES & 1
        if n < count:
            mbarrier.wait(k_empty.index(stage), phase ^ 1)
            bar = k_full.index(stage)
            mbarrier.expect(bar, BYTES)
            bulk_copy(keys, [kv, (first + n) * _BLOCK - start, 0], bar, ks.index(stage))
        if n > 0:
            stage = (n - 1) % _STAGES
            phase = (n - 1) // _STAGES & 1
            mbarrier.wait(v_empty.index(stage), phase ^ 1)
            bar = v_full.index(stage)
            mbarrier.expect(bar, BYTES)
            bulk_copy(values, [kv, (first + n - 1) * _BLOCK - start, 0], bar, vs.index(stage))


@gluon.jit
def _weigh(scores, block, whole, part, low, high, scale, peak, total, S: gl.constexpr):
    """Weights of a block's scores against the highest so far, and what becomes of earlier sums."""
    if (block < whole) | (block >= part):
        j = block * _BLOCK + gl.arange(0, _BLOCK, gl.SliceLayout(0, S))[None, :]
        seen = (j >= low[:, None]) & (j < high[:, None])
        scores = gl.where(seen, scores, float("-inf"))
    new = gl.maximum(peak, gl.max(scores, axis=1) * scale)
    base = gl.where(new == float("-inf"), 0.0, new)
    less = gl.broadcast(-base[:, None], scores)[0]
    weight = gl.exp2(gl.fma(scores, gl.full_like(scores, scale), less))
    keep = gl.exp2(peak - base)
    return weight, keep, new, total * keep + gl.sum(weight, axis=1)


@gluon.jit
def _consume(
    part_of: gl.constexpr,
    memory,
    bars,
    pointers,
    rows,  # what the consumers' rows are: tokens, the program's first, its head
    strides,  # of the gate
    sight,  # what they see
    walk,  # the blocks
    scale,
    HEADS: gl.constexpr,
    D: gl.constexpr,
    SIDE: gl.constexpr,
    BEGINS: gl.constexpr,
    ENDS: gl.constexpr,
):
    qs, ks, vs = memory
    k_full, k_empty, v_full, v_empty, q_full = bars
    gate_ptr, y_ptr, out_ptr, mass_ptr = pointers
    tokens, above, head = rows
    gate_row, gate_head = strides
    pos, start, end, tile, lag = sight
    first, count, whole, part = walk
    dtype: gl.constexpr = qs.dtype
    S: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, _BLOCK, 16])
    O: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    P: gl.constexpr = gl.DotOperandLayout(0, O, 2)
    ROW: gl.constexpr = gl.SliceLayout(1, O)
    SROW: gl.constexpr = gl.SliceLayout(1, S)
    above += part_of * _LINES
    local = gl.arange(0, _LINES, ROW)
    live = local < tokens - above
    d = gl.arange(0, D, gl.SliceLayout(0, O))
    line = above * HEADS + head
    at = local[:, None] * (HEADS * D) + d[None, :]
    low, high = limits(pos + above + gl.arange(0, _LINES, SROW), start, end, tile, lag, SIDE)
    if BEGINS:
        peak = gl.full([_LINES], float("-inf"), gl.float32, SROW)
        total = gl.zeros([_LINES], gl.float32, SROW)
        out = gl.zeros([_LINES, D], gl.float32, O)
    else:
        srow = gl.arange(0, _LINES, SROW)
        mass = mass_ptr + 2 * line + 2 * HEADS * srow
        peak = gl.load(mass, mask=srow < tokens - above, other=float("-inf"))
        total = gl.load(mass + 1, mask=srow < tokens - above, other=0.0)
        out = gl.load(out_ptr + line * D + at, mask=live[:, None], other=0.0)

    if count > 0:
        q = qs.index(part_of)
        zero = gl.zeros([_LINES, _BLOCK], gl.float32, S)
        mbarrier.wait(q_full, 0)
        mbarrier.wait(k_full.index(0), 0)
        k = viewed(ks.index(0), dtype, [_BLOCK, D], qs.layout)
        scores = warpgroup_mma(q, k.permute((1, 0)), zero, use_acc=False, is_async=True)
        scores = warpgroup_mma_wait(0, deps=(scores,))
        mbarrier.arrive(k_empty.index(0), count=1)
        weight, keep, peak, total = _weigh(
            scores, first, whole, part, low, high, scale, peak, total, S
        )
        out = out * gl.convert_layout(keep, ROW)[:, None]
        p = gl.convert_layout(weight.to(dtype), P)
        for n in range(1, count):
            stage = n % _STAGES
            phase = n // _STAGES & 1
            before = (n - 1) % _STAGES
            mbarrier.wait(k_full.index(stage), phase)
            k = viewed(ks.index(stage), dtype, [_BLOCK, D], qs.layout)
            scores = warpgroup_mma(q, k.permute((1, 0)), zero, use_acc=False, is_async=True)
            mbarrier.wait(v_full.index(before), (n - 1) // _STAGES & 1)
            v = viewed(vs.index(before), dtype, [_BLOCK, D], qs.layout)
            out = warpgroup_mma(p, v, out, is_async=True)
            scores = warpgroup_mma_wait(1, deps=(scores,))
            mbarrier.arrive(k_empty.index(stage), count=1)
            weight, keep, peak, total = _weigh(
                scores, first + n, whole, part, low, high, scale, peak, total, S
            )
            out = warpgroup_mma_wait(0, deps=(out,))
            mbarrier.arrive(v_empty.index(before), count=1)
            out = out * gl.convert_layout(keep, ROW)[:, None]
            p = gl.convert_layout(weight.to(dtype), P)
        last = (count - 1) % _STAGES
        mbarrier.wait(v_full.index(last), (count - 1) // _STAGES & 1)
        v = viewed(vs.index(last), dtype, [_BLOCK, D], qs.layout)
        out = warpgroup_mma(p, v, out, is_async=True)
        out = warpgroup_mma_wait(0, deps=(out,))

    if ENDS:
        gate_ptr += above * gate_row + head * gate_head
        place = local[:, None] * gate_row + d[None, :]
        total = gl.where(total == 0.0, 1.0, total)  # of rows that are none
        gate = gl.load(gate_ptr + place, mask=live[:, None], other=0.0).to(gl.float32)
        y = rounded(out * gl.convert_layout(1.0 / total, ROW)[:, None], dtype)
        y = y * rounded(1.0 / (1.0 + gl.exp(-gate)), dtype)
        gl.store(y_ptr + line * D + at, rounded(y, dtype).to(dtype), mask=live[:, None])
    else:
        srow = gl.arange(0, _LINES, SROW)
        mass = mass_ptr + 2 * line + 2 * HEADS * srow
        gl.store(mass, peak, mask=srow < tokens - above)
        gl.store(mass + 1, total, mask=srow < tokens - above)
        gl.store(out_ptr + line * D + at, out, mask=live[:, None])


@gluon.jit(do_not_specialize=["tokens", "pos", "start", "length", "tile", "lag"])
def _attention_prefill_gluon(
    queries,  # [tokens, heads d] by LINES, D
    keys,  # [kv_heads, keys, d] by 1, BLOCK, D
    values,
    gate_ptr,
    y_ptr,
    out_ptr,
    mass_ptr,
    tokens,
    pos,
    start,
    length,
    gate_row,
    gate_head,
    scale,
    tile,
    lag,
    HEADS: gl.constexpr,
    KV_HEADS: gl.constexpr,
    SIDE: gl.constexpr,
    BEGINS: gl.constexpr,
    ENDS: gl.constexpr,
    PDL: gl.constexpr,
):
    GROUP: gl.constexpr = HEADS // KV_HEADS
    D: gl.constexpr = queries.block_type.shape[1]
    ROWS: gl.constexpr = _CONSUMERS * _LINES
    let_next_start(PDL)
    blocks = (tokens + ROWS - 1) // ROWS
    program = gl.program_id(0)
    above = (blocks - 1 - program // GROUP % blocks) * ROWS
    kv = program // GROUP // blocks
    head = kv * GROUP + program % GROUP
    end = start + length
    bottom = pos + gl.minimum(above + ROWS, tokens) - 1
    low_top, high_top = limits(pos + above, start, end, tile, lag, SIDE)
    low_bottom, high_bottom = limits(bottom, start, end, tile, lag, SIDE)
    first = low_top // _BLOCK
    last = (high_bottom + _BLOCK - 1) // _BLOCK
    count = gl.maximum(last - first, 0)
    whole = (low_bottom + _BLOCK - 1) // _BLOCK  # blocks before it are seen in part
    part = high_top // _BLOCK  # and those from here on
    qs = gl.allocate_shared_memory(queries.dtype, [_CONSUMERS, _LINES, D], queries.layout)
    ks = gl.allocate_shared_memory(queries.dtype, [_STAGES, 1, _BLOCK, D], keys.layout)
    vs = gl.allocate_shared_memory(queries.dtype, [_STAGES, 1, _BLOCK, D], keys.layout)
    k_full = gl.allocate_shared_memory(gl.int64, [_STAGES, 1], mbarrier.MBarrierLayout())
    k_empty = gl.allocate_shared_memory(gl.int64, [_STAGES, 1], mbarrier.MBarrierLayout())
    v_full = gl.allocate_shared_memory(gl.int64, [_STAGES, 1], mbarrier.MBarrierLayout())
    v_empty = gl.allocate_shared_memory(gl.int64, [_STAGES, 1], mbarrier.MBarrierLayout())
    q_full = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    for i in gl.static_range(_STAGES):
        mbarrier.init(k_full.index(i), count=1)
        mbarrier.init(v_full.index(i), count=1)
        mbarrier.init(k_empty.index(i), count=_CONSUMERS)
        mbarrier.init(v_empty.index(i), count=_CONSUMERS)
    mbarrier.init(q_full, count=1)
    barrier()
    wait_for_inputs(PDL)
    memory = (qs, ks, vs)
    bars = (k_full, k_empty, v_full, v_empty, q_full)
    pointers = (gate_ptr, y_ptr, out_ptr, mass_ptr)
    rows = (tokens, above, head)
    strides = (gate_row, gate_head)
    sight = (pos, start, end, tile, lag)
    walk = (first, count, whole, part)
    gl.warp_specialize(
        [
            (
                _consume,
                (
                    0, memory, bars, pointers, rows, strides, sight, walk, scale,
                    HEADS, D, SIDE, BEGINS, ENDS,
                ),
            ),
            (
                _consume,
                (
                    1, memory, bars, pointers, rows, strides, sight, walk, scale,
                    HEADS, D, SIDE, BEGINS, ENDS,
                ),
            ),
            (
                _produce,
                (
                    keys, values, queries, ks, vs, qs, bars, above, head * D, kv, first, count,
                    start,
                ),
            ),
        ],
        [4, 1],
        [240, 24],
    )  # fmt: skip


def layout(d: int, rank: int) -> gl.NVMMASharedLayout:
    """Of rows of d numbers in shared memory, as bulk copies and products take them."""
    return gl.NVMMASharedLayout(min(128, 2 * d), 16, rank)


def launch(
    q: Tensor,
    gate: Tensor,
    k: Tensor,
    v: Tensor,
    pos: int,
    start: int,
    out: Tensor | None,
    mass: Tensor | None,
    begins: bool,
    ends: bool,
    side: int,
    tile: int,
    lag: int,
) -> Tensor:
    tokens, heads, d = q.shape
    y = fake(q, gate, k, v, pos, start, ends=ends)
    overlap = dependent_launch(q.device)
    blocks = -(-tokens // (CONSUMERS * LINES))
    _attention_prefill_gluon[(blocks * heads,)](
        TensorDescriptor.from_tensor(q.flatten(1), [LINES, d], layout(d, 2)),
        TensorDescriptor.from_tensor(k, [1, BLOCK, d], layout(d, 3)),
        TensorDescriptor.from_tensor(v, [1, BLOCK, d], layout(d, 3)),
        gate,
        y,
        q if out is None else out,  # never touched
        q if mass is None else mass,
        tokens,
        pos,
        start,
        k.shape[1],
        gate.stride(0),
        gate.stride(1),
        d**-0.5 * LOG2_E,
        tile,
        lag,
        HEADS=heads,
        KV_HEADS=k.shape[0],
        SIDE=side,
        BEGINS=begins,
        ENDS=ends,
        PDL=overlap,
        launch_pdl=overlap,
        num_warps=4,
        enable_fp_fusion=False,
    )
    return y


@variant(
    "attention_prefill",
    "gluon",
    fake,
    mutates=MUTATES,
    support=replace(
        SUPPORT,
        devices=("cuda",),
        capability=(9, 0),
        below=(10, 0),
        powers={"d_head": 16},
        most={"d_head": 256},
    ),
)
def attention_prefill(
    q: Tensor,
    gate: Tensor,
    k: Tensor,
    v: Tensor,
    pos: int,
    start: int,
    out: Tensor | None = None,
    mass: Tensor | None = None,
    begins: bool = True,
    ends: bool = True,
    side: int = ALL,
    tile: int = 1,
    lag: int = 0,
) -> Tensor:
    """As triton, for 16 bits and heads of at most 256 dims."""
    checked(q, gate, k, v, start, (out, mass), BLOCK, begins and ends)
    if q.dtype.itemsize != 2 or q.shape[2] > 256:
        raise ValueError(
            f"attention_prefill: gluon needs 16 bits and heads of at most 256 dims, got {q.dtype}"
            f" and {q.shape[2]}; use kernel.attention_prefill=triton"
        )
    return launch(q, gate, k, v, pos, start, out, mass, begins, ends, side, tile, lag)
