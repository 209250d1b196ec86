"""One launch over the keys' blocks, dealt round in turn to a fixed number of splits.

Split s takes the blocks s, s + SPLITS, s + 2 SPLITS ..., whatever the context: the grid is fixed,
the position is read on the device, and splits that no block reaches leave at once. A block that
lies wholly after a row's position changes nothing for it, to the bit (weight exp2(-inf) is 0,
factor exp2(0) is 1), so neither the call's other rows nor its length enter a row's sums.

A split that is alone writes the rows. Otherwise splits leave partial results and count their
arrivals; the last `folders` splits wait for all and share out the rows' heads, whose partial
results they take in order of splits. Those that wait are fewer than can run at a time, so they
never keep out what they wait for. Where only one may, it is the last to arrive, which need not.
Counters end at zero.

On Hopper a program holds all rows of a key-value head (QUERIES_FIRST): packed query heads are the
64 or 128 lines of both products. Elsewhere, and for narrow caches, it holds a few: keys and values
are the lines, queries the columns, and more rows mean more programs, neighbours that share the keys
through L2.
Caches are 16-bit, fp32 (the interpreter), or narrow: float8 e4m3 at scale 1 and codes of 8 or 4
bits, multiplied as fp16, exactly. These come in words of PARTS dims, the products of each place in
a word apart: dim PARTS j + c is row j of part c. Scales stay out of the products: those of keys
multiply scores, those of values weights. Weights are taken against the highest score times scale,
not the highest score, so that in fp16 the largest is about 1 whatever the values' size.
Whole blocks are read: rows past the live ones must be finite, and weigh nothing.
"""

import functools
from dataclasses import dataclass, replace

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.attention_decode.fold import origin, settle, write
from kernels.attention_decode.reference import fake
from kernels.codes import STEP, format_of, words
from kernels.define import FLOAT8, MAX_ROWS, variant
from kernels.gpu import (
    INTERPRETED,
    SUPPORT,
    check,
    counters,
    dependent_launch,
    let_next_start,
    power_of_two,
    same_dtype,
    wait_for_inputs,
)
from kernels.rounding import PLAIN, float8_words

LOG2_E = 1.4426950408889634
H200 = (132, 232448, (9, 0))  # what launches on no device are planned for


@triton.jit
def _load(ptr, PARTS: tl.constexpr, CHUNK: tl.constexpr, FORMAT: tl.constexpr):
    """A block's parts as products take them; the interpreter multiplies fp32 alone."""
    if FORMAT == "float8":
        loaded = float8_words(tl.load(ptr))
    elif FORMAT != "plain":
        loaded = words(tl.load(ptr), FORMAT)
    else:
        loaded = ()
        for c in tl.static_range(PARTS):
            loaded = loaded + (tl.load(ptr + c * CHUNK),)
    if PLAIN:
        parts = ()
        for c in tl.static_range(PARTS):
            parts = parts + (loaded[c].to(tl.float32),)
    else:
        parts = loaded
    return parts


@triton.jit
def _dims(c, j, PARTS: tl.constexpr, CHUNK: tl.constexpr, FORMAT: tl.constexpr):
    """The dims of a head that rows j of part c are."""
    if FORMAT == "plain":
        d = j + c * CHUNK
    else:
        d = j * PARTS + c
    return d


@triton.jit
def _weigh(scores, live, scale, lift, peak, total, AXIS: tl.constexpr):
    """Weights of a block's scores against the highest so far, and what becomes of earlier sums.

    Highest is what is so after adding `lift`. `total` is one sum, or the block's that add up to it.
    """
    scores = tl.where(live, scores * scale, float("-inf"))
    high = tl.maximum(peak, tl.max(scores + lift, axis=AXIS))
    base = origin(high)
    weight = tl.exp2(scores - tl.expand_dims(base, AXIS))
    keep = tl.exp2(peak - base)
    if len(total.shape) == 1:
        total = total * keep + tl.sum(weight, axis=AXIS)
    else:
        total = total * tl.expand_dims(keep, AXIS) + weight
    return weight, keep, high, total


@triton.jit(do_not_specialize=["rows", "folders"])
def _attend(
    q_ptr,
    gate_ptr,
    k_ptr,
    v_ptr,
    k_scale_ptr,
    v_scale_ptr,
    pos_ptr,
    y_ptr,
    out_ptr,
    peak_ptr,
    total_ptr,
    arrived_ptr,
    rows,
    folders,
    capacity,
    scale,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    D: tl.constexpr,
    PARTS: tl.constexpr,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    SPLITS: tl.constexpr,
    SLOTS: tl.constexpr,
    STAGES: tl.constexpr,
    QUERIES_FIRST: tl.constexpr,
    FORMAT: tl.constexpr,
    PRECISION: tl.constexpr,
    PDL: tl.constexpr,
):
    GROUP: tl.constexpr = HEADS // KV_HEADS
    COLUMNS: tl.constexpr = ROWS * WIDTH  # row-major (row, head of the group, padded)
    CHUNK: tl.constexpr = D // PARTS
    NARROW: tl.constexpr = FORMAT != "plain"
    SCALED: tl.constexpr = FORMAT == "int8" or FORMAT == "int4"
    UNIT: tl.constexpr = STEP if FORMAT == "int4" else 1.0  # of what `words` gives
    LINE: tl.constexpr = CHUNK if NARROW else D  # elements from one key to the next
    DTYPE: tl.constexpr = (
        tl.float32 if PLAIN else (tl.float16 if NARROW else q_ptr.dtype.element_ty)
    )
    above = tl.program_id(0) * ROWS
    split = tl.program_id(1)
    kv = tl.program_id(2)
    let_next_start(PDL)
    wait_for_inputs(PDL)
    first = tl.load(pos_ptr).to(tl.int32)
    column = tl.arange(0, COLUMNS)
    row = above + column // WIDTH
    head = kv * GROUP + column % WIDTH
    live = (row < rows) & (column % WIDTH < GROUP)
    j = tl.arange(0, CHUNK)
    if QUERIES_FIRST:  # under way together with the position
        mask = live[:, None] & (j >= 0)[None, :]
        query = tl.load(
            q_ptr + (row * HEADS + head)[:, None] * D + j[None, :], mask=mask, other=0.0
        )
        query = query.to(DTYPE)
    end = tl.minimum(above + ROWS, rows)
    stop = tl.minimum(first + end, capacity)
    blocks = (stop + BLOCK - 1) // BLOCK
    if split >= blocks:
        return
    rounds = (blocks - split + SPLITS - 1) // SPLITS
    keys = tl.minimum(first + row + 1, capacity)
    local = tl.arange(0, BLOCK)
    cache = kv.to(tl.int64) * capacity * LINE
    peak = tl.full([COLUMNS], float("-inf"), tl.float32)
    total = tl.zeros([COLUMNS], tl.float32)
    if QUERIES_FIRST:
        out = tl.zeros([COLUMNS, D], tl.float32)
        place = cache + local[:, None] * D + j[None, :]
        for i in tl.range(0, rounds, num_stages=STAGES):
            at = (split + i * SPLITS) * BLOCK
            k = tl.load(k_ptr + place + at * D).to(DTYPE)
            scores = tl.dot(query, tl.trans(k), input_precision=PRECISION)
            seen = local[None, :] < (keys - at)[:, None]
            weight, keep, peak, total = _weigh(scores, seen, scale, 0.0, peak, total, 1)
            v = tl.load(v_ptr + place + at * D).to(DTYPE)
            out = tl.dot(weight.to(DTYPE), v, out * keep[:, None], input_precision=PRECISION)
        outs = (out,)
    else:
        queries = ()
        outs = ()
        for c in tl.static_range(PARTS):
            place = (row * HEADS + head)[None, :] * D + _dims(c, j, PARTS, CHUNK, FORMAT)[:, None]
            query = tl.load(q_ptr + place, mask=live[None, :], other=0.0)
            queries = queries + (query.to(DTYPE),)
            outs = outs + (tl.zeros([CHUNK, COLUMNS], tl.float32),)
        k_ptr += cache + local[:, None] * LINE + j[None, :]
        v_ptr += cache + local[None, :] * LINE + j[:, None]
        k_scale_ptr += kv.to(tl.int64) * capacity + local
        v_scale_ptr += kv.to(tl.int64) * capacity + local
        if SCALED:  # summed over keys once, at the end
            total = tl.zeros([BLOCK, COLUMNS], tl.float32)
        for i in tl.range(0, rounds, num_stages=STAGES):
            at = (split + i * SPLITS) * BLOCK
            ks = _load(k_ptr + at * LINE, PARTS, CHUNK, FORMAT)
            scores = tl.zeros([BLOCK, COLUMNS], tl.float32)
            for c in tl.static_range(PARTS):
                scores = tl.dot(ks[c], queries[c], scores, input_precision=PRECISION)
            seen = local[:, None] < (keys - at)[None, :]
            if SCALED:
                own = tl.load(k_scale_ptr + at) * (scale * UNIT)
                size = tl.load(v_scale_ptr + at)[:, None]
                lift = tl.log2(size)
                weight, keep, peak, total = _weigh(scores, seen, own[:, None], lift, peak, total, 0)
                weight *= size
            else:
                weight, keep, peak, total = _weigh(scores, seen, scale, 0.0, peak, total, 0)
            vs = _load(v_ptr + at * LINE, PARTS, CHUNK, FORMAT)
            weight = weight.to(DTYPE)
            products = ()
            for c in tl.static_range(PARTS):
                out = outs[c] * keep[None, :]
                products = products + (tl.dot(vs[c], weight, out, input_precision=PRECISION),)
            outs = products
        if SCALED:
            total = tl.sum(total, axis=0)

    splits = tl.minimum(blocks, SPLITS)
    group = tl.program_id(0) * KV_HEADS + kv
    base = group * SPLITS
    slot = (base + split) * COLUMNS + column
    if (FORMAT != "int4") & (splits == 1):  # rotated sums are turned back in `fold`
        for c in tl.static_range(PARTS):
            if QUERIES_FIRST:
                at = (row * HEADS + head)[:, None] * D + j[None, :]
                write(y_ptr, gate_ptr, at, live[:, None] & (at >= 0), outs[c], total[:, None])
            else:
                at = (row * HEADS + head)[None, :] * D + _dims(c, j, PARTS, CHUNK, FORMAT)[:, None]
                write(y_ptr, gate_ptr, at, live[None, :] & (at >= 0), outs[c], total[None, :])
        return
    tl.store(peak_ptr + slot, peak, mask=live)
    tl.store(total_ptr + slot, total, mask=live)
    for c in tl.static_range(PARTS):
        if QUERIES_FIRST:
            tl.store(out_ptr + slot[:, None] * D + j[None, :], outs[c], mask=live[:, None])
        else:
            place = slot[None, :] * D + _dims(c, j, PARTS, CHUNK, FORMAT)[:, None]
            tl.store(out_ptr + place, outs[c] * UNIT, mask=live[None, :])

    settle(
        group, split, splits, folders, above, (end - above) * GROUP, kv, gate_ptr, y_ptr, out_ptr,
        peak_ptr, total_ptr, arrived_ptr, HEADS, GROUP, D, COLUMNS, WIDTH, SPLITS, SLOTS,
        FORMAT == "int4",
    )  # fmt: skip


@dataclass(frozen=True)
class Plan:
    """How keys are dealt to programs. `splits`, `block`, `parts`, `queries_first` are numerics."""

    splits: int  # per key-value head
    block: int  # keys at a time
    rows: int  # of one program
    parts: int  # that the dims of one product are cut into: more hold fewer registers
    stages: int
    warps: int = 4
    waiting: int = 1  # programs that may wait for others: fewer than can run at a time
    queries_first: bool = False  # which operand of the products has tensor cores' 64 lines


def plan(
    device: torch.device, heads: int, kv_heads: int, d: int, dtype: torch.dtype, rows: int = 1
) -> Plan:
    """A split per processor, and tiles that neither spill nor outgrow shared memory."""
    parts = _parts(dtype)
    if INTERPRETED:
        return Plan(splits=2, block=64, rows=4, parts=parts, stages=1)
    width = power_of_two(heads // kv_heads)
    processors, shared, capability = _card(device) if device.type == "cuda" else H200
    if dtype == torch.float8_e4m3fn and capability < FLOAT8:
        raise ValueError(
            "attention_decode: a float8 cache needs compute capability 8.9, this is"
            f" {capability[0]}.{capability[1]}; use kv=int8 or kv=bf16"
        )
    waiting = processors - 1
    if capability[0] == 9 and parts == 1 and width <= 8 and d <= 256:
        splits = 1 << _splits(processors, kv_heads).bit_length() - 1
        lines = 64 if rows * width <= 64 else 128
        stages = 5 if lines == 64 else 4
        return Plan(
            splits, 32, lines // width, 1, stages, lines // 16, waiting=waiting, queries_first=True
        )
    few = max(1, 32 // width)
    large = shared > 200_000
    if parts > 1:  # two programs a processor: one converts while the other multiplies
        splits = _splits(2 * processors, kv_heads)
        return Plan(splits, 64, few, parts, stages=3 if large else 2, waiting=waiting)
    splits = _splits(processors, kv_heads)
    if large:
        return Plan(splits, 64, few, 1, stages=3, waiting=waiting)
    return Plan(splits, 32, few, max(1, d // 128), stages=2, waiting=waiting)


def _parts(dtype: torch.dtype) -> int:
    """Codes in a word; 1 for numbers that are multiplied as they are."""
    return {torch.float8_e4m3fn: 4, torch.int8: 2, torch.uint8: 4}.get(dtype, 1)


def _splits(programs: int, kv_heads: int) -> int:
    """At most 64, whose partial results a program folds at a time."""
    return max(1, min(64, programs // kv_heads))


@functools.cache
def _card(device: torch.device) -> tuple[int, int, tuple[int, int]]:
    """Processors, bytes of shared memory that a program may have, and compute capability."""
    p = torch.cuda.get_device_properties(device)
    return p.multi_processor_count, p.shared_memory_per_block_optin, (p.major, p.minor)


def launch(
    q: Tensor,
    gate: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    pos: Tensor,
    chosen: Plan,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
) -> Tensor:
    form = format_of("attention_decode", q, k_cache, v_cache, k_scale, v_scale)
    rows, heads, d = q.shape
    kv_heads, capacity, _ = k_cache.shape
    width = power_of_two(heads // kv_heads)
    groups = -(-rows // chosen.rows)
    most = -(-MAX_ROWS // chosen.rows)
    slots = groups * kv_heads * chosen.splits * chosen.rows * width
    out = q.new_empty(slots, d, dtype=torch.float32)
    peak, total = (q.new_empty(slots, dtype=torch.float32) for _ in range(2))
    y = torch.empty_like(gate)
    if form != "plain":
        word = torch.int32 if form == "float8" else torch.int16
        k_cache, v_cache = k_cache.view(word), v_cache.view(word)
    overlap = dependent_launch(q.device)
    _attend[(groups, chosen.splits, kv_heads)](
        q,
        gate,
        k_cache,
        v_cache,
        k_cache if k_scale is None else k_scale,
        v_cache if v_scale is None else v_scale,
        pos,
        y,
        out,
        peak,
        total,
        counters(q.device, most * kv_heads),
        rows,
        max(1, chosen.waiting // (groups * kv_heads)),
        capacity,
        d**-0.5 * LOG2_E,
        HEADS=heads,
        KV_HEADS=kv_heads,
        D=d,
        PARTS=chosen.parts,
        ROWS=chosen.rows,
        WIDTH=width,
        BLOCK=chosen.block,
        SPLITS=chosen.splits,
        SLOTS=power_of_two(chosen.splits),
        STAGES=chosen.stages,
        QUERIES_FIRST=chosen.queries_first,
        FORMAT=form,
        PRECISION="ieee" if q.dtype == torch.float32 else "tf32",
        PDL=overlap,
        num_warps=chosen.warps,
        enable_fp_fusion=False,
        launch_pdl=overlap,
    )
    return y


@variant(
    "attention_decode",
    "triton",
    fake,
    support=replace(
        SUPPORT,
        powers={"d_head": 16, "narrow d_head": 64},
        multiples={"capacity": 128},
        float8=FLOAT8,
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
    """As the reference, for 1 to 16 rows and heads whose width is a power of two from 16 on.

    Narrow caches take heads from 64 on. Capacities are multiples of 128. Rows at and past the
    capacity see the whole cache.
    """
    rows, heads, d = q.shape
    kv_heads, capacity, _ = k_cache.shape
    check("attention_decode", rows, q=q, gate=gate, k_cache=k_cache, v_cache=v_cache)
    same_dtype("attention_decode", q=q, gate=gate)
    chosen = plan(q.device, heads, kv_heads, d, k_cache.dtype, rows)
    least = 64 if chosen.parts > 1 and k_cache.itemsize == 1 and not INTERPRETED else 16
    if d < least or d & (d - 1) or heads % kv_heads or capacity % 128:
        raise ValueError(
            f"attention_decode: triton needs a head width that is a power of two from {least} on,"
            f" heads in whole groups and a capacity that is a multiple of 128, got {d}, {heads}"
            f" over {kv_heads} and {capacity}; use kernel.attention_decode=reference"
        )
    return launch(q, gate, k_cache, v_cache, pos, chosen, k_scale, v_scale)
