"""One launch over the keys' blocks, dealt round in turn to a fixed number of splits.

Split s takes the runs s, s + SPLITS, s + 2 SPLITS ... of RUN blocks, whatever the context: the
grid is fixed, the position is read on the device, and splits that no block reaches leave at once. A
block that lies wholly after a row's position changes nothing for it, to the bit (weight exp2(-inf)
is 0, factor exp2(0) is 1), so neither the call's other rows nor its length enter a row's sums.

Splits leave partial results and count their arrivals. The last of FAN neighbours folds theirs, the
last of those folds what they left and writes the rows; counters end at zero. Folding takes live
splits in their order, FOLD query heads at a time.

Keys and values stand on the M side of both products, the packed query heads of a few rows on the N
side, whose width is fixed; more rows mean more programs, neighbours that share the keys through L2.
Caches are 16-bit, fp32 (the interpreter), or float8 e4m3 at scale 1, multiplied as fp16, exactly.
Float8 comes in words of four dims, the products of each byte apart: dim 4 j + c is row j of part c.
Whole blocks are read: rows past the live ones must be finite, and weigh nothing.
"""

import functools
import math
from dataclasses import dataclass, replace

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.attention_decode.reference import fake
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
from kernels.rounding import PLAIN, float8_words, rounded

LOG2_E = 1.4426950408889634
H200 = (132, 232448, (9, 0))  # what launches on no device are planned for


@triton.jit
def _load(ptr, PARTS: tl.constexpr, CHUNK: tl.constexpr, FLOAT8: tl.constexpr):
    """A block's parts as products take them; the interpreter multiplies fp32 alone."""
    if FLOAT8:
        loaded = float8_words(tl.load(ptr))
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
def _dims(c, j, PARTS: tl.constexpr, CHUNK: tl.constexpr, FLOAT8: tl.constexpr):
    """The dims of a head that rows j of part c are."""
    if FLOAT8:
        d = j * PARTS + c
    else:
        d = j + c * CHUNK
    return d


@triton.jit
def _origin(peak):
    """What to subtract from scores before exp2: the peak, or 0 where nothing was seen."""
    return tl.where(peak == float("-inf"), 0.0, peak)


@triton.jit
def _arrive(counter_ptr, expected):
    """Whether this program is the last of `expected`; then the counter is back at zero."""
    tl.debug_barrier()  # all that this program wrote, before its arrival
    last = tl.atomic_add(counter_ptr, 1, sem="acq_rel") == expected - 1
    if last:
        tl.store(counter_ptr, 0)
    return last


@triton.jit
def _partial(at, live, out_ptr, peak_ptr, total_ptr, D: tl.constexpr):
    """A partial result, which another program may have left: out [.., d], peak, total [columns]."""
    peak = tl.load(peak_ptr + at, mask=live, other=float("-inf"), cache_modifier=".cg")
    total = tl.load(total_ptr + at, mask=live, other=0.0, cache_modifier=".cg")
    d = tl.arange(0, D)[None, :]
    own = live[:, None] & (d >= 0)
    out = tl.load(out_ptr + at[:, None] * D + d, mask=own, other=0.0, cache_modifier=".cg")
    return out, peak, total


@triton.jit
def _fold(
    slot,
    count,
    into,
    row,
    rows,
    kv,
    gate_ptr,
    y_ptr,
    out_ptr,
    peak_ptr,
    total_ptr,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    D: tl.constexpr,
    COLUMNS: tl.constexpr,
    WIDTH: tl.constexpr,
    FAN: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """Partial results `slot` .. `slot + count - 1` of rows `row` .. `rows - 1` as the one `into`.

    Where `into` is negative, they are all there are: then y's rows are written.
    """
    dtype = y_ptr.dtype.element_ty
    d = tl.arange(0, D)[None, :]
    slots = tl.arange(0, FAN)[:, None]
    for start in range(0, (rows - row) * WIDTH, CHUNK):
        column = start + tl.arange(0, CHUNK)
        r = row + column // WIDTH
        head = column % WIDTH
        live = (r < rows) & (head < GROUP)
        at = slot * COLUMNS + column
        part, weight, mass = _partial(at, live, out_ptr, peak_ptr, total_ptr, D)
        every = peak_ptr + slots * COLUMNS + at[None, :]
        valid = (slots < count) & live[None, :]
        peaks = tl.load(every, mask=valid, other=float("-inf"), cache_modifier=".cg")
        peak = tl.max(peaks, axis=0)
        origin = _origin(peak)
        total = tl.zeros([CHUNK], tl.float32)
        out = tl.zeros([CHUNK, D], tl.float32)
        for _ in range(count):  # the next is under way during this one
            at += COLUMNS
            more = live & (at < (slot + count) * COLUMNS)
            next_part, next_weight, next_mass = _partial(at, more, out_ptr, peak_ptr, total_ptr, D)
            share = tl.exp2(weight - origin)
            total += mass * share
            out = tl.fma(part, tl.broadcast_to(share[:, None], out.shape), out)
            part, weight, mass = next_part, next_weight, next_mass
        mask = live[:, None] & (d >= 0)
        if into < 0:
            own = (r * HEADS + kv * GROUP + head)[:, None] * D + d
            gate = tl.load(gate_ptr + own, mask=mask, other=0.0).to(tl.float32)
            y = rounded(out / total[:, None], dtype) * rounded(1.0 / (1.0 + tl.exp(-gate)), dtype)
            tl.store(y_ptr + own, rounded(y, dtype).to(dtype), mask=mask)
        else:
            place = into * COLUMNS + column
            tl.store(peak_ptr + place, peak, mask=live)
            tl.store(total_ptr + place, total, mask=live)
            tl.store(out_ptr + place[:, None] * D + d, out, mask=mask)


@triton.jit(do_not_specialize=["rows"])
def _attend(
    q_ptr,
    gate_ptr,
    k_ptr,
    v_ptr,
    pos_ptr,
    y_ptr,
    out_ptr,
    peak_ptr,
    total_ptr,
    arrived_ptr,
    rows,
    capacity,
    scale,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    D: tl.constexpr,
    PARTS: tl.constexpr,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    RUN: tl.constexpr,
    SPLITS: tl.constexpr,
    FAN: tl.constexpr,
    FOLD: tl.constexpr,
    STAGES: tl.constexpr,
    FLOAT8: tl.constexpr,
    PRECISION: tl.constexpr,
    PDL: tl.constexpr,
):
    GROUP: tl.constexpr = HEADS // KV_HEADS
    COLUMNS: tl.constexpr = ROWS * WIDTH  # row-major (row, head of the group, padded)
    CHUNK: tl.constexpr = D // PARTS
    LINE: tl.constexpr = CHUNK if FLOAT8 else D  # elements from one key to the next
    FANS: tl.constexpr = (SPLITS + FAN - 1) // FAN
    above = tl.program_id(0) * ROWS
    split = tl.program_id(1)
    kv = tl.program_id(2)
    let_next_start(PDL)
    wait_for_inputs(PDL)
    first = tl.load(pos_ptr).to(tl.int32)
    stop = tl.minimum(first + tl.minimum(above + ROWS, rows), capacity)
    blocks = (stop + BLOCK - 1) // BLOCK
    runs = (blocks + RUN - 1) // RUN
    if split >= runs:
        return
    rounds = (runs - split + SPLITS - 1) // SPLITS  # the last of all runs may be short
    short = tl.where((runs - 1) % SPLITS == split, runs * RUN - blocks, 0)
    column = tl.arange(0, COLUMNS)
    row = above + column // WIDTH
    head = kv * GROUP + column % WIDTH
    live = (row < rows) & (column % WIDTH < GROUP)
    keys = tl.minimum(first + row + 1, capacity)
    j = tl.arange(0, CHUNK)
    queries = ()
    outs = ()
    for c in tl.static_range(PARTS):
        place = (row * HEADS + head)[None, :] * D + _dims(c, j, PARTS, CHUNK, FLOAT8)[:, None]
        query = tl.load(q_ptr + place, mask=live[None, :], other=0.0)
        if FLOAT8:
            query = query.to(tl.float16)
        if PLAIN:
            query = query.to(tl.float32)
        queries = queries + (query,)
        outs = outs + (tl.zeros([CHUNK, COLUMNS], tl.float32),)
    local = tl.arange(0, BLOCK)
    cache = kv.to(tl.int64) * capacity * LINE
    k_ptr += cache + local[:, None] * LINE + j[None, :]
    v_ptr += cache + local[None, :] * LINE + j[:, None]
    peak = tl.full([COLUMNS], float("-inf"), tl.float32)
    total = tl.zeros([COLUMNS], tl.float32)
    for i in tl.range(0, rounds * RUN - short, num_stages=STAGES):
        at = ((split + i // RUN * SPLITS) * RUN + i % RUN) * BLOCK
        ks = _load(k_ptr + at * LINE, PARTS, CHUNK, FLOAT8)
        scores = tl.zeros([BLOCK, COLUMNS], tl.float32)
        for c in tl.static_range(PARTS):
            scores = tl.dot(ks[c], queries[c], scores, input_precision=PRECISION)
        scores = scores * scale
        scores = tl.where(local[:, None] < (keys - at)[None, :], scores, float("-inf"))
        high = tl.maximum(peak, tl.max(scores, axis=0))
        origin = _origin(high)
        weight = tl.exp2(scores - origin[None, :])
        keep = tl.exp2(peak - origin)
        total = total * keep + tl.sum(weight, axis=0)
        vs = _load(v_ptr + at * LINE, PARTS, CHUNK, FLOAT8)
        weight = weight.to(vs[0].dtype)
        products = ()
        for c in tl.static_range(PARTS):
            out = outs[c] * keep[None, :]
            products = products + (tl.dot(vs[c], weight, out, input_precision=PRECISION),)
        outs = products
        peak = high

    group = tl.program_id(0) * KV_HEADS + kv
    base = group * (SPLITS + FANS)
    slot = (base + split) * COLUMNS + column
    tl.store(peak_ptr + slot, peak, mask=live)
    tl.store(total_ptr + slot, total, mask=live)
    for c in tl.static_range(PARTS):
        place = slot[None, :] * D + _dims(c, j, PARTS, CHUNK, FLOAT8)[:, None]
        tl.store(out_ptr + place, outs[c], mask=live[None, :])

    arrived_ptr += group * (FANS + 1)
    splits = tl.minimum(runs, SPLITS)
    fans = (splits + FAN - 1) // FAN
    fan = split // FAN
    count = tl.minimum(splits - fan * FAN, FAN)
    end = tl.minimum(above + ROWS, rows)
    if _arrive(arrived_ptr + fan, count):
        _fold(
            base + fan * FAN, count, tl.where(fans > 1, base + SPLITS + fan, -1), above, end, kv,
            gate_ptr, y_ptr, out_ptr, peak_ptr, total_ptr, HEADS, GROUP, D, COLUMNS, WIDTH,
            FAN, FOLD,
        )  # fmt: skip
        if fans > 1:
            if _arrive(arrived_ptr + FANS, fans):
                _fold(
                    base + SPLITS, fans, -1, above, end, kv,
                    gate_ptr, y_ptr, out_ptr, peak_ptr, total_ptr,
                    HEADS, GROUP, D, COLUMNS, WIDTH, FAN, FOLD,
                )  # fmt: skip


@dataclass(frozen=True)
class Plan:
    """How the keys are dealt to programs. All but `stages`, `warps`, `fold` are numerics."""

    splits: int  # per key-value head
    block: int  # keys at a time
    rows: int  # of one program
    parts: int  # that the dims of one product are cut into: more hold fewer registers
    stages: int
    warps: int = 4
    run: int = 1  # neighbouring blocks that one split takes: longer ones need fewer folds
    fold: int = 16  # query heads whose partial results are folded at a time


def plan(device: torch.device, heads: int, kv_heads: int, d: int, dtype: torch.dtype) -> Plan:
    """A split per processor, and tiles that neither spill nor outgrow shared memory."""
    float8 = dtype == torch.float8_e4m3fn
    if INTERPRETED:
        return Plan(splits=2, block=64, rows=4, parts=4 if float8 else 1, stages=1)
    rows = max(1, 32 // power_of_two(heads // kv_heads))
    processors, shared, capability = _card(device) if device.type == "cuda" else H200
    if float8 and capability < FLOAT8:
        raise ValueError(
            "attention_decode: a float8 cache needs compute capability 8.9, this is"
            f" {capability[0]}.{capability[1]}; use kv=bf16"
        )
    large = shared > 200_000
    if float8:  # two programs a processor: one converts while the other multiplies
        splits = _splits(2 * processors, kv_heads)
        return Plan(splits, block=64, rows=rows, parts=4, stages=3 if large else 2)
    splits = _splits(processors, kv_heads)
    if large:
        return Plan(splits, block=64, rows=rows, parts=1, stages=3)
    return Plan(splits, block=32, rows=rows, parts=max(1, d // 128), stages=2)


def _splits(programs: int, kv_heads: int) -> int:
    """At most 64, which fold in two rounds of 8."""
    return max(1, min(64, programs // kv_heads))


@functools.cache
def _card(device: torch.device) -> tuple[int, int, tuple[int, int]]:
    """Processors, bytes of shared memory that a program may have, and compute capability."""
    p = torch.cuda.get_device_properties(device)
    return p.multi_processor_count, p.shared_memory_per_block_optin, (p.major, p.minor)


def launch(
    q: Tensor, gate: Tensor, k_cache: Tensor, v_cache: Tensor, pos: Tensor, chosen: Plan
) -> Tensor:
    rows, heads, d = q.shape
    kv_heads, capacity, _ = k_cache.shape
    width = power_of_two(heads // kv_heads)
    fan = power_of_two(math.isqrt(chosen.splits - 1) + 1)
    fans = -(-chosen.splits // fan)
    groups = -(-rows // chosen.rows)
    most = -(-MAX_ROWS // chosen.rows)
    slots = groups * kv_heads * (chosen.splits + fans) * chosen.rows * width
    out = q.new_empty(slots, d, dtype=torch.float32)
    peak, total = (q.new_empty(slots, dtype=torch.float32) for _ in range(2))
    y = torch.empty_like(gate)
    float8 = k_cache.dtype == torch.float8_e4m3fn
    if float8:
        k_cache, v_cache = k_cache.view(torch.int32), v_cache.view(torch.int32)
    overlap = dependent_launch(q.device)
    _attend[(groups, chosen.splits, kv_heads)](
        q,
        gate,
        k_cache,
        v_cache,
        pos,
        y,
        out,
        peak,
        total,
        counters(q.device, most * kv_heads * (fans + 1)),
        rows,
        capacity,
        d**-0.5 * LOG2_E,
        HEADS=heads,
        KV_HEADS=kv_heads,
        D=d,
        PARTS=chosen.parts,
        ROWS=chosen.rows,
        WIDTH=width,
        BLOCK=chosen.block,
        RUN=chosen.run,
        SPLITS=chosen.splits,
        FAN=fan,
        FOLD=min(chosen.fold, chosen.rows * width),
        STAGES=chosen.stages,
        FLOAT8=float8,
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
    support=replace(SUPPORT, powers={"d_head": 16}, multiples={"capacity": 128}, float8=FLOAT8),
)
def attention_decode(
    q: Tensor, gate: Tensor, k_cache: Tensor, v_cache: Tensor, pos: Tensor
) -> Tensor:
    """As the reference, for 1 to 16 rows and heads whose width is a power of two from 16 on.

    Caches in q's dtype or float8 e4m3 (heads from 64 on), their capacity a multiple of 128. Rows at
    and past the capacity see the whole cache.
    """
    rows, heads, d = q.shape
    kv_heads, capacity, _ = k_cache.shape
    check("attention_decode", rows, q=q, gate=gate, k_cache=k_cache, v_cache=v_cache)
    same_dtype("attention_decode", k_cache=k_cache, v_cache=v_cache)
    least = 16
    if k_cache.dtype != torch.float8_e4m3fn:
        same_dtype("attention_decode", q=q, gate=gate, k_cache=k_cache)
    elif not INTERPRETED:
        least = 64  # tensor cores take parts from 16 dims on
    if d < least or d & (d - 1) or heads % kv_heads or capacity % 128:
        raise ValueError(
            f"attention_decode: triton needs a head width that is a power of two from {least} on,"
            f" heads in whole groups and a capacity that is a multiple of 128, got {d}, {heads}"
            f" over {kv_heads} and {capacity}; use kernel.attention_decode=reference"
        )
    chosen = plan(q.device, heads, kv_heads, d, k_cache.dtype)
    return launch(q, gate, k_cache, v_cache, pos, chosen)
