"""Split over the keys a row sees, whose number is read on the device; a second kernel merges.

A row at position p sees n = p + 1 keys and cuts them into pieces of ceil(n / (SPLITS * BLOCK))
blocks: a function of the row's own position, so neither the call's other rows nor a bucket of
lengths enters its sums. The rows of one call have one piece length, or two where n crosses a
multiple of SPLITS * BLOCK: then the few programs go round twice, each time for the rows concerned.

Keys stand on the M side of both products, the packed query heads of a few rows on the N side, whose
width is fixed; more rows mean more programs, neighbours that share the keys through L2.
Caches are 16-bit, fp32 (the interpreter), or float8 e4m3 at scale 1, multiplied as fp16, exactly.
Whole blocks are read: rows past the live ones must be finite, and weigh nothing.
"""

import functools
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.attention_decode.reference import fake
from kernels.define import variant
from kernels.gpu import INTERPRETED, SUPPORT, check, power_of_two, same_dtype
from kernels.rounding import PLAIN, float8_values, rounded

LOG2_E = 1.4426950408889634
DIMS = 64  # that a program of the merge takes
H200 = (132, 232448, (9, 0))  # what launches on no device are planned for


@triton.jit
def _piece(keys, SPLITS: tl.constexpr, BLOCK: tl.constexpr):
    """Keys per piece for a row that sees `keys` keys."""
    return ((keys + SPLITS * BLOCK - 1) // (SPLITS * BLOCK)) * BLOCK


@triton.jit
def _operand(x, FLOAT8: tl.constexpr):
    """What a product takes; the interpreter multiplies fp32 alone."""
    if FLOAT8:
        x = float8_values(x)
    if PLAIN:
        x = x.to(tl.float32)
    return x


@triton.jit(do_not_specialize=["rows"])
def _pieces(
    q_ptr,
    k_ptr,
    v_ptr,
    pos_ptr,
    out_ptr,
    peak_ptr,
    total_ptr,
    rows,
    capacity,
    scale,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    D: tl.constexpr,
    CHUNK: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
    SPLITS: tl.constexpr,
    STAGES: tl.constexpr,
    FLOAT8: tl.constexpr,
    PRECISION: tl.constexpr,
):
    GROUP: tl.constexpr = HEADS // KV_HEADS
    PACKED: tl.constexpr = COLUMNS // GROUP  # rows of one program
    above = tl.program_id(0) * PACKED
    split = tl.program_id(1)
    kv = tl.program_id(2)
    first = tl.load(pos_ptr).to(tl.int32)
    d = tl.arange(0, CHUNK)
    column = tl.arange(0, COLUMNS)  # row-major (row, head of the group), then padding
    row = above + column // GROUP
    head = kv * GROUP + column % GROUP
    end = tl.minimum(above + PACKED, rows)
    keys = tl.minimum(first + row + 1, capacity)
    piece = tl.where(row < end, _piece(keys, SPLITS, BLOCK), 0)
    shortest = _piece(tl.minimum(first + above + 1, capacity), SPLITS, BLOCK)
    longest = _piece(tl.minimum(first + end, capacity), SPLITS, BLOCK)
    live = (row < end)[None, :]
    CHUNKS: tl.constexpr = D // CHUNK
    queries = ()
    for c in tl.static_range(CHUNKS):
        place = (row * HEADS + head)[None, :] * D + d[:, None] + c * CHUNK
        query = tl.load(q_ptr + place, mask=live, other=0.0)
        if FLOAT8:
            query = query.to(tl.float16)
        queries = queries + (_operand(query, False),)
    cache = kv.to(tl.int64) * capacity * D
    local = tl.arange(0, BLOCK)
    place = local[:, None] * D + d[None, :]
    for turn in range(0, tl.where(longest > shortest, 2, 1)):
        length = tl.where(turn == 0, shortest, longest)
        mine = piece == length
        start = split * length
        stop = tl.minimum(start + length, tl.max(tl.where(mine, keys, 0), axis=0))
        peak = tl.full([COLUMNS], float("-inf"), tl.float32)
        total = tl.zeros([COLUMNS], tl.float32)
        outs = ()
        for _ in tl.static_range(CHUNKS):
            outs = outs + (tl.zeros([CHUNK, COLUMNS], tl.float32),)
        for at in tl.range(start, stop, BLOCK, num_stages=STAGES):
            base = cache + at * D
            scores = tl.zeros([BLOCK, COLUMNS], tl.float32)
            for c in tl.static_range(CHUNKS):
                k = _operand(tl.load(k_ptr + base + place + c * CHUNK), FLOAT8)
                scores = tl.dot(k, queries[c], scores, input_precision=PRECISION)
            scores = scores * scale
            scores = tl.where(local[:, None] < (keys - at)[None, :], scores, float("-inf"))
            high = tl.maximum(peak, tl.max(scores, axis=0))
            origin = tl.where(high == float("-inf"), 0.0, high)  # a row that sees none of them
            weight = tl.exp2(scores - origin[None, :])
            keep = tl.exp2(peak - origin)
            total = total * keep + tl.sum(weight, axis=0)
            products = ()
            for c in tl.static_range(CHUNKS):
                v = _operand(tl.load(v_ptr + base + place + c * CHUNK), FLOAT8)
                out = outs[c] * keep[None, :]
                out = tl.dot(tl.trans(v), weight.to(v.dtype), out, input_precision=PRECISION)
                products = products + (out,)
            outs = products
            peak = high
        if start < stop:
            slot = (split * rows + row) * HEADS + head
            tl.store(peak_ptr + slot, peak, mask=mine)
            tl.store(total_ptr + slot, total, mask=mine)
            for c in tl.static_range(CHUNKS):
                span = slot[None, :] * D + d[:, None] + c * CHUNK
                tl.store(out_ptr + span, outs[c], mask=mine[None, :])


@triton.jit(do_not_specialize=["rows"])
def _merge(
    gate_ptr,
    pos_ptr,
    out_ptr,
    peak_ptr,
    total_ptr,
    y_ptr,
    rows,
    capacity,
    HEADS: tl.constexpr,
    D: tl.constexpr,
    DIMS: tl.constexpr,
    BLOCK: tl.constexpr,
    SPLITS: tl.constexpr,
    SLOTS: tl.constexpr,
):
    row, head = tl.program_id(0), tl.program_id(1)
    d = tl.program_id(2) * DIMS + tl.arange(0, DIMS)
    keys = tl.minimum(tl.load(pos_ptr).to(tl.int32) + row + 1, capacity)
    piece = _piece(keys, SPLITS, BLOCK)
    split = tl.arange(0, SLOTS)
    live = split < (keys + piece - 1) // piece
    slot = (split * rows + row) * HEADS + head
    peak = tl.load(peak_ptr + slot, mask=live, other=float("-inf"))
    share = tl.exp2(peak - tl.max(peak, axis=0))
    total = tl.sum(share * tl.load(total_ptr + slot, mask=live, other=0.0), axis=0)
    out = tl.load(out_ptr + slot[:, None] * D + d[None, :], mask=live[:, None], other=0.0)
    out = tl.sum(out * share[:, None], axis=0) / total
    dtype = gate_ptr.dtype.element_ty
    place = (row * HEADS + head) * D + d
    gate = tl.load(gate_ptr + place).to(tl.float32)
    y = rounded(out, dtype) * rounded(1.0 / (1.0 + tl.exp(-gate)), dtype)
    tl.store(y_ptr + place, rounded(y, dtype).to(dtype))


@dataclass(frozen=True)
class Plan:
    """How the keys are dealt to programs. Part of the numerics: all but `stages`."""

    splits: int  # pieces of a long cache, per key-value head
    block: int  # keys at a time; 16 per warp
    columns: int  # query heads times rows of a program
    chunk: int  # dims of one product: fewer hold fewer registers
    stages: int


def plan(device: torch.device, heads: int, kv_heads: int, d: int, dtype: torch.dtype) -> Plan:
    """A piece per processor, and tiles that neither spill nor outgrow shared memory."""
    group = heads // kv_heads
    if INTERPRETED:
        return Plan(splits=2, block=64, columns=max(16, power_of_two(group)), chunk=d, stages=1)
    columns = max(32, power_of_two(group))
    processors, shared, capability = _card(device) if device.type == "cuda" else H200
    if dtype == torch.float8_e4m3fn and capability < (8, 9):
        raise ValueError(
            "attention_decode: a float8 cache needs compute capability 8.9, this is"
            f" {capability[0]}.{capability[1]}; use kv=bf16"
        )
    splits = max(1, processors // kv_heads)
    if shared < 200_000:
        return Plan(splits, block=32, columns=columns, chunk=min(d, 128), stages=2)
    if dtype == torch.float8_e4m3fn:
        return Plan(splits, block=128, columns=columns, chunk=min(d, 128), stages=2)
    return Plan(splits, block=64, columns=columns, chunk=d, stages=3)


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
    splits = chosen.splits
    out = q.new_empty(splits, rows, heads, d, dtype=torch.float32)
    peak, total = (q.new_empty(splits, rows, heads, dtype=torch.float32) for _ in range(2))
    float8 = k_cache.dtype == torch.float8_e4m3fn
    if float8 and INTERPRETED:
        k_cache, v_cache = k_cache.view(torch.uint8), v_cache.view(torch.uint8)
    shape = {"HEADS": heads, "D": d, "BLOCK": chosen.block, "SPLITS": splits}
    packed = chosen.columns * kv_heads // heads
    _pieces[(-(-rows // packed), splits, kv_heads)](
        q,
        k_cache,
        v_cache,
        pos,
        out,
        peak,
        total,
        rows,
        capacity,
        d**-0.5 * LOG2_E,
        KV_HEADS=kv_heads,
        **shape,
        CHUNK=chosen.chunk,
        COLUMNS=chosen.columns,
        STAGES=chosen.stages,
        FLOAT8=float8,
        PRECISION="ieee" if q.dtype == torch.float32 else "tf32",
        num_warps=max(1, chosen.block // 16),
        enable_fp_fusion=False,
    )
    y = torch.empty_like(gate)
    dims = min(d, DIMS)
    _merge[(rows, heads, d // dims)](
        gate,
        pos,
        out,
        peak,
        total,
        y,
        rows,
        capacity,
        **shape,
        DIMS=dims,
        SLOTS=power_of_two(splits),
        num_warps=4,
        enable_fp_fusion=False,
    )
    return y


@variant("attention_decode", "triton", fake, support=SUPPORT)
def attention_decode(
    q: Tensor, gate: Tensor, k_cache: Tensor, v_cache: Tensor, pos: Tensor
) -> Tensor:
    """As the reference, for 1 to 16 rows and heads whose width is a power of two from 16 on.

    Caches in q's dtype or float8 e4m3, their capacity a multiple of 128. Rows at and past the
    capacity see the whole cache.
    """
    rows, heads, d = q.shape
    kv_heads, capacity, _ = k_cache.shape
    check("attention_decode", rows, q=q, gate=gate, k_cache=k_cache, v_cache=v_cache)
    same_dtype("attention_decode", k_cache=k_cache, v_cache=v_cache)
    if k_cache.dtype != torch.float8_e4m3fn:
        same_dtype("attention_decode", q=q, gate=gate, k_cache=k_cache)
    if d < 16 or d & (d - 1) or heads % kv_heads or capacity % 128:
        raise ValueError(
            "attention_decode: triton needs a head width that is a power of two from 16 on, heads"
            f" in whole groups and a capacity that is a multiple of 128, got {d}, {heads} over"
            f" {kv_heads} and {capacity}; use kernel.attention_decode=reference"
        )
    chosen = plan(q.device, heads, kv_heads, d, k_cache.dtype)
    return launch(q, gate, k_cache, v_cache, pos, chosen)
