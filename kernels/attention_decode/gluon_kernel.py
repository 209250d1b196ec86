"""The kernel for narrow caches on Hopper: a program's blocks of keys, one after another.

Keys and values are the lines of both products, whose left operands tensor cores take from
registers: a thread loads just the codes of its own part of an operand, brought to shared memory by
bulk copies ahead of it, and turns them into fp16 two at a time. The right operands, queries and a
block's weights, are in shared memory: as many columns as a program has vectors (a row's query head,
in order of rows, then heads), in one part or two, since a part's width is a power of two. A column
never meets another one, so neither the parts nor the number of rows enter its sums.

When copies, products and waits begin changes no bit; the order in which products are added to a sum
does. Registers bound the loop: with 8 rows it must not spill, with 16 hardly.
"""

import torch
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from kernels.attention_decode.gluon_codes import (
    keys,
    raw_keys,
    raw_values,
    stage_queries,
    values,
)
from kernels.attention_decode.gluon_fold import fold, leave
from kernels.attention_decode.gluon_plan import BLOCK, WARPS, Plan
from kernels.attention_decode.gluon_scores import begin, scales, weigh
from kernels.attention_decode.triton import LOG2_E
from kernels.codes import STEP, TINY
from kernels.define import MAX_ROWS
from kernels.gluon_names import barrier, bulk_copy
from kernels.gpu import (
    counters,
    dependent_launch,
    let_next_start,
    power_of_two,
    wait_for_inputs,
)

_BLOCK = gl.constexpr(BLOCK)
_HALF = gl.constexpr(BLOCK // 2)
_WARPS = gl.constexpr(WARPS)
_TINY = gl.constexpr(TINY)


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
def _bring(tiles, line, n, rounds, ring, full, SPLITS: gl.constexpr, AHEAD: gl.constexpr):
    """The n-th block of a program, if there is one, to its stage of a ring."""
    BYTES: gl.constexpr = tiles.block_type.shape[0] * _BLOCK * 128
    if n < rounds:
        bar = full.index(n % AHEAD)
        mbarrier.expect(bar, BYTES)
        bulk_copy(tiles, [0, line + n * (SPLITS * _BLOCK), 0], bar, ring.index(n % AHEAD))


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
    barrier()
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
    UNIT: gl.constexpr = STEP if FORMAT == "int4" else 1.0
    if SCALED:
        own, size = scales(k_scale_ptr, v_scale_ptr, line)
    else:
        own, size = scale, scale
    stage_queries(q_ptr, qs[0], above, vectors, kv, HEADS, GROUP, FORMAT)
    if len(PARTS) == 2:
        stage_queries(q_ptr, qs[1], above + PARTS[0], vectors, kv, HEADS, GROUP, FORMAT)
    totals = ()
    outs = ()
    zeros = ()
    for i in gl.static_range(len(PARTS)):
        begun = begin(PARTS[i], above + i * PARTS[0], GROUP)
        peaks[i].store(begun[0])
        seen[i].store(begun[4])
        totals = totals + (begun[1],)
        outs = outs + (begun[2],)
        zeros = zeros + (begun[3],)
    fence_async_shared()
    barrier()
    mbarrier.wait(has_keys.index(0), 0)
    raw = raw_keys(ks.index(0), FORMAT)
    for n in range(0, rounds):
        none = n >> 30  # 0: what it is added to is not held in registers from ahead of the loop
        scores = zeros
        for product in gl.static_range(4):
            bs = ()
            for i in gl.static_range(len(PARTS)):
                bs = bs + (qs[i].index(product + none).permute((1, 0)),)
            scores = _times(keys(raw[product], FORMAT), bs, scores, product > 0)
            if product > 0:  # at most two products' operands are in registers at a time
                scores = _ended(scores, len(PARTS))
        if SCALED:
            size = gl.maximum(size, _TINY)  # past the live ones it may be 0
            factors = own * (scale * UNIT), gl.log2(size), 1.0 / size
            near = gl.minimum(n + 1, rounds - 1)
            own, size = scales(k_scale_ptr, v_scale_ptr, line + near * (SPLITS * _BLOCK))
        else:
            factors = own, own, own
        scores = _ended(scores, 0)
        start = (split + n * SPLITS) * _BLOCK
        partial = start + _BLOCK > gl.minimum(first + above // GROUP + 1, capacity)
        kept = ()
        sums = ()
        for i in gl.static_range(len(PARTS)):
            weight, keep, total = weigh(
                scores[i], peaks[i], seen[i], totals[i], factors, scale, partial,
                first + 1 - start, capacity - start, SCALED,
            )  # fmt: skip
            ps[i].index(none).store(weight.to(gl.float16))
            kept = kept + (outs[i] * keep[None, :],)
            sums = sums + (total,)
        totals = sums
        mbarrier.wait(has_values.index(n % VALUES_AHEAD), n // VALUES_AHEAD & 1)
        v0, v1 = raw_values(vs.index(n % VALUES_AHEAD), FORMAT)
        fence_async_shared()
        barrier()  # weights are there, and this block's codes are in registers
        _bring(keys_tiles, line, n + KEYS_AHEAD, rounds, ks, has_keys, SPLITS, KEYS_AHEAD)
        _bring(values_tiles, line, n + VALUES_AHEAD, rounds, vs, has_values, SPLITS, VALUES_AHEAD)
        lower = ()
        upper = ()
        for i in gl.static_range(len(PARTS)):
            lower = lower + (ps[i].index(none).slice(0, _HALF, dim=0),)
            upper = upper + (ps[i].index(none).slice(_HALF, _HALF, dim=0),)
        outs = _ended(_times(values(v0, FORMAT), lower, kept, True), 0)
        outs = _times(values(v1, FORMAT), upper, outs, True)
        near = gl.minimum(n + 1, rounds - 1)
        mbarrier.wait(has_keys.index(near % KEYS_AHEAD), near // KEYS_AHEAD & 1)
        raw = raw_keys(ks.index(near % KEYS_AHEAD), FORMAT)
        outs = _ended(outs, 0)

    splits = gl.minimum(blocks, SPLITS)
    group = gl.program_id(0) * KV_HEADS + kv
    slot = group * SPLITS
    # rotated sums are turned back in `fold`; Triton 3.6 takes no constant here
    alone = splits == (0 if FORMAT == "int4" else 1)
    column = 0
    for i in gl.static_range(len(PARTS)):
        leave(
            outs[i], peaks[i], totals[i], above + column, vectors, kv, alone, slot + split, column,
            gate_ptr, y_ptr, out_ptr, peak_ptr, total_ptr, HEADS, GROUP, WIDTH, FORMAT,
        )  # fmt: skip
        column += PARTS[i]
    if alone:
        return
    arrived_ptr += group
    mine = gl.minimum(WIDTH, vectors - above)
    folders = gl.minimum(gl.minimum(splits, folders), mine)
    barrier()  # all that this program wrote, before its arrival
    arrived = gl.atomic_add(arrived_ptr, 1, sem="acq_rel") + 1
    if gl.where(folders == 1, arrived < splits, split + folders < splits):
        return
    while arrived < splits:
        arrived = gl.atomic_add(arrived_ptr, 0, sem="acquire")
    column = gl.where(folders == 1, 0, split + folders - splits)
    for place in range(column, mine, folders):
        fold(
            slot, splits, place, above + place, kv, gate_ptr, y_ptr, out_ptr, peak_ptr, total_ptr,
            HEADS, GROUP, WIDTH, SLOTS, FORMAT == "int4",
        )  # fmt: skip
    if gl.atomic_add(arrived_ptr, 1, sem="relaxed") == splits + folders - 1:
        gl.store(arrived_ptr, 0)


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
        num_warps=WARPS,
        enable_fp_fusion=False,
        launch_pdl=overlap,
    )
    return y
