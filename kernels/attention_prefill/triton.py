"""A block of one head's queries per program, walking the keys that it sees from the left.

Keys come in blocks of an absolute grid (counted from key 0), so neither the call's other rows nor
its span decide which keys are summed together. A block that a row sees nothing of changes nothing
for it, to the bit (weight exp2(-inf) is 0, factor exp2(0) is 1). Only blocks that some row of the
program sees in part are masked.

Programs in flight together are neighbours: heads that share keys, then blocks of rows, the longest
first, so that keys come from L2 and short programs fill the end.
"""
# pyright: reportGeneralTypeIssues=false

from dataclasses import dataclass, replace

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.attention_decode.fold import origin
from kernels.attention_prefill.reference import ALL, BEFORE, BEHIND, MUTATES, fake
from kernels.define import variant
from kernels.gpu import (
    INTERPRETED,
    SUPPORT,
    check,
    dependent_launch,
    let_next_start,
    same_dtype,
    shared_memory,
    wait_for_inputs,
)
from kernels.rounding import PLAIN, rounded

LOG2_E = 1.4426950408889634
_BEFORE = tl.constexpr(BEFORE)
_BEHIND = tl.constexpr(BEHIND)


@triton.jit
def limits(p, start, end, tile, lag, SIDE: tl.constexpr):
    """The keys low .. high - 1 of a span that rows at p see."""
    edge = tl.maximum(p - lag, 0) // tile * tile
    low = edge if SIDE == _BEHIND else p * 0
    high = tl.minimum(edge, p + 1) if SIDE == _BEFORE else p + 1
    return tl.maximum(low, start), tl.minimum(high, end)


@triton.jit
def _walk(
    query, k_ptr, v_ptr, first, last, low, high, start, end, scale, peak, total, out,
    D: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr, MASKED: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Blocks first .. last - 1 of keys onto the sums of rows."""
    DTYPE: tl.constexpr = tl.float32 if PLAIN else v_ptr.dtype.element_ty
    local = tl.arange(0, BLOCK)
    place = local[:, None] * D + tl.arange(0, D)[None, :]
    for block in tl.range(first, last, num_stages=STAGES):
        at = block * BLOCK
        offset = (at - start).to(tl.int64) * D
        if MASKED:
            real = (at + local < end)[:, None]
            k = tl.load(k_ptr + offset + place, mask=real, other=0.0).to(DTYPE)
        else:
            k = tl.load(k_ptr + offset + place).to(DTYPE)
        scores = tl.dot(query, tl.trans(k), input_precision=PRECISION)
        if MASKED:
            j = (at + local)[None, :]
            scores = tl.where((j >= low[:, None]) & (j < high[:, None]), scores, float("-inf"))
        high_peak = tl.maximum(peak, tl.max(scores, axis=1) * scale)
        base = origin(high_peak)
        less = tl.broadcast_to(-base[:, None], scores.shape)
        weight = tl.exp2(tl.fma(scores, tl.full(scores.shape, scale, tl.float32), less))
        keep = tl.exp2(peak - base)
        total = total * keep + tl.sum(weight, axis=1)
        peak = high_peak
        if MASKED:
            v = tl.load(v_ptr + offset + place, mask=real, other=0.0).to(DTYPE)
        else:
            v = tl.load(v_ptr + offset + place).to(DTYPE)
        out = tl.dot(weight.to(DTYPE), v, out * keep[:, None], input_precision=PRECISION)
    return peak, total, out


@triton.jit(do_not_specialize=["tokens", "pos", "start", "keys", "tile", "lag"])
def _attention_prefill(
    q_ptr,
    gate_ptr,
    k_ptr,
    v_ptr,
    y_ptr,
    out_ptr,
    mass_ptr,
    tokens,
    pos,
    start,
    keys,
    k_stride,  # from one key-value head to the next
    v_stride,
    gate_row,
    gate_head,
    scale,
    tile,
    lag,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    D: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
    SIDE: tl.constexpr,
    BEGINS: tl.constexpr,
    ENDS: tl.constexpr,
    PRECISION: tl.constexpr,
    PDL: tl.constexpr,
):
    GROUP: tl.constexpr = HEADS // KV_HEADS
    DTYPE: tl.constexpr = tl.float32 if PLAIN else v_ptr.dtype.element_ty
    let_next_start(PDL)
    wait_for_inputs(PDL)
    blocks = (tokens + ROWS - 1) // ROWS
    program = tl.program_id(0)
    block = blocks - 1 - program // GROUP % blocks
    kv = program // GROUP // blocks
    head = kv * GROUP + program % GROUP
    local = tl.arange(0, ROWS)
    live = local < tokens - block * ROWS
    d = tl.arange(0, D)
    line = block * ROWS * HEADS + head  # of the first row; from it on offsets are constant
    at = local[:, None] * (HEADS * D) + d[None, :]
    query = tl.load(q_ptr + line * D + at, mask=live[:, None], other=0.0).to(DTYPE)
    if BEGINS:
        peak = tl.full([ROWS], float("-inf"), tl.float32)
        total = tl.zeros([ROWS], tl.float32)
        out = tl.zeros([ROWS, D], tl.float32)
    else:
        mass = mass_ptr + 2 * line + 2 * HEADS * local
        peak = tl.load(mass, mask=live, other=float("-inf"))
        total = tl.load(mass + 1, mask=live, other=0.0)
        out = tl.load(out_ptr + line * D + at, mask=live[:, None], other=0.0)

    end = start + keys
    low, high = limits(pos + block * ROWS + local, start, end, tile, lag, SIDE)
    top, bottom = pos + block * ROWS, pos + tl.minimum(block * ROWS + ROWS, tokens) - 1
    low_top, high_top = limits(top, start, end, tile, lag, SIDE)
    low_bottom, high_bottom = limits(bottom, start, end, tile, lag, SIDE)
    first = low_top // BLOCK
    last = (high_bottom + BLOCK - 1) // BLOCK
    whole = tl.minimum((low_bottom + BLOCK - 1) // BLOCK, last)  # blocks before are seen in part
    part = tl.maximum(high_top // BLOCK, whole)  # and those from here on
    kv = kv.to(tl.int64)
    k_ptr += kv * k_stride
    v_ptr += kv * v_stride
    if SIDE == _BEHIND:
        peak, total, out = _walk(
            query, k_ptr, v_ptr, first, whole, low, high, start, end, scale, peak, total, out,
            D, BLOCK, 1, True, PRECISION,
        )  # fmt: skip
    peak, total, out = _walk(
        query, k_ptr, v_ptr, whole, part, low, high, start, end, scale, peak, total, out,
        D, BLOCK, STAGES, False, PRECISION,
    )  # fmt: skip
    peak, total, out = _walk(
        query, k_ptr, v_ptr, part, last, low, high, start, end, scale, peak, total, out,
        D, BLOCK, 1, True, PRECISION,
    )  # fmt: skip

    if ENDS:
        dtype = y_ptr.dtype.element_ty
        gate_ptr += block * ROWS * gate_row + head * gate_head
        place = local[:, None] * gate_row + d[None, :]
        gate = tl.load(gate_ptr + place, mask=live[:, None], other=0.0).to(tl.float32)
        total = tl.where(total == 0.0, 1.0, total)  # of rows that are none
        y = rounded(out * (1.0 / total)[:, None], dtype)
        y = y * rounded(1.0 / (1.0 + tl.exp(-gate)), dtype)
        tl.store(y_ptr + line * D + at, rounded(y, dtype).to(dtype), mask=live[:, None])
    else:
        mass = mass_ptr + 2 * line + 2 * HEADS * local
        tl.store(mass, peak, mask=live)
        tl.store(mass + 1, total, mask=live)
        tl.store(out_ptr + line * D + at, out, mask=live[:, None])


@dataclass(frozen=True)
class Plan:
    """`block`, the keys at a time, is numerics; the others are not."""

    rows: int
    block: int
    stages: int
    warps: int


HOPPER = Plan(rows=128, block=64, stages=2, warps=8)
SMALL = Plan(rows=64, block=32, stages=2, warps=8)  # for 99 KB of shared memory
INTERPRETER = Plan(rows=32, block=64, stages=1, warps=1)


def plan(device: torch.device) -> Plan:
    if INTERPRETED:
        return INTERPRETER
    return HOPPER if shared_memory(device) > 200_000 else SMALL


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
    chosen: Plan,
) -> Tensor:
    tokens, heads, d = q.shape
    kv_heads, keys, _ = k.shape
    y = fake(q, gate, k, v, pos, start, ends=ends)
    overlap = dependent_launch(q.device)
    _attention_prefill[(-(-tokens // chosen.rows) * heads,)](
        q,
        gate,
        k,
        v,
        y,
        q if out is None else out,  # never touched
        q if mass is None else mass,
        tokens,
        pos,
        start,
        keys,
        k.stride(0),
        v.stride(0),
        gate.stride(0),
        gate.stride(1),
        d**-0.5 * LOG2_E,
        tile,
        lag,
        HEADS=heads,
        KV_HEADS=kv_heads,
        D=d,
        ROWS=chosen.rows,
        BLOCK=chosen.block,
        STAGES=chosen.stages,
        SIDE=side,
        BEGINS=begins,
        ENDS=ends,
        PRECISION="ieee" if q.dtype == torch.float32 else "tf32",
        PDL=overlap,
        num_warps=chosen.warps,
        enable_fp_fusion=False,
        launch_pdl=overlap,
    )
    return y


def checked(
    q: Tensor, gate: Tensor, k: Tensor, v: Tensor, start: int, carry: tuple[Tensor | None, ...],
    block: int, whole: bool,
) -> None:  # fmt: skip
    """Refuse what the kernels would read wrongly. `whole`: the span is a chunk's only one."""
    tokens, heads, d = q.shape
    kv_heads = k.shape[0]
    check("attention_prefill", 1, q=q, k=k[0], v=v[0])
    same_dtype("attention_prefill", q=q, gate=gate, k=k, v=v)
    if d < 16 or d & (d - 1) or heads % kv_heads or start % block or q.dtype == torch.float64:
        raise ValueError(
            "attention_prefill: triton needs up to 32 bits, a head width that is a power of two"
            f" from 16 on, heads in whole groups and spans that start on a multiple of {block}, got"
            f" {q.dtype}, {d}, {heads} over {kv_heads} and {start};"
            " use kernel.attention_prefill=reference"
        )
    if tokens * max(gate.stride(0), heads * d) >= 2**31:
        raise ValueError(
            f"attention_prefill: {tokens} tokens are too many at a time; cut the chunk"
        )
    if k.shape != v.shape or gate.shape != q.shape or gate.stride(2) != 1:
        raise ValueError(
            f"attention_prefill: expected keys and values of one shape and a gate like the queries"
            f" {tuple(q.shape)}, got {tuple(k.shape)}, {tuple(v.shape)} and {tuple(gate.shape)}"
        )
    for name, x, last in zip(("out", "mass"), carry, (d, 2), strict=True):
        if x is None and not whole:
            raise ValueError(f"attention_prefill: a span among several needs {name}, got None")
        if x is not None and not (
            x.shape == (tokens, heads, last) and x.dtype == torch.float32 and x.is_contiguous()
        ):
            raise ValueError(
                f"attention_prefill: expected {name} contiguous, fp32 {(tokens, heads, last)},"
                f" got {x.dtype} {tuple(x.shape)}"
            )


@variant(
    "attention_prefill",
    "triton",
    fake,
    mutates=MUTATES,
    support=replace(SUPPORT, powers={"d_head": 16}),
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
    """As the reference, for heads whose width is a power of two; peaks are in units of log 2.

    Keys and values may be cut out of a longer cache; their heads are contiguous. Spans start on
    multiples of 64. Keys past the last row's own are not read.
    """
    chosen = plan(q.device)
    checked(q, gate, k, v, start, (out, mass), chosen.block, begins and ends)
    return launch(q, gate, k, v, pos, start, out, mass, begins, ends, side, tile, lag, chosen)
