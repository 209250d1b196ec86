"""One launch over tiles and exact rows, dealt round in turn to a fixed number of splits.

Item 0 to 5 are halves of the sink and of the ring's two tiles, item 5 + t is packed tile t; split s
takes the items s, s + SPLITS, ...: first the packed ones, then the exact. A split of which a row
sees nothing has no weight for it, to the bit. Partial results are folded as in
kernels/attention_decode.

Keys and values are the lines of products, queries the columns; 64 tokens and a part of the dims at
a time, those at one place of words. Codes meet their zeros as they become fp16, two at a time in
one register: a mask and a multiply-add. All other scales stay out of the products: those of dims go
onto queries ahead of the one over dims, and onto sums behind the one over tokens; those of tokens
onto scores and weights. The keys' mean is taken off scores of exact rows instead.
"""

from dataclasses import dataclass, replace

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.attention_decode.fold import origin, settle
from kernels.define import MAX_ROWS, variant
from kernels.gpu import (
    INTERPRETED,
    SUPPORT,
    check,
    counters,
    dependent_launch,
    let_next_start,
    power_of_two,
    processors,
    same_dtype,
    shared_memory,
    wait_for_inputs,
)
from kernels.kvarn import LAG, RING, TILE, value_bits
from kernels.kvarn_attention.reference import fake
from kernels.rounding import PLAIN

LOG2_E = 1.4426950408889634
_TILE = tl.constexpr(TILE)
_RING = tl.constexpr(RING)
_LAG = tl.constexpr(LAG)
_HALF = tl.constexpr(TILE // 2)
_EXACT = tl.constexpr(2 + RING // (TILE // 2))  # items of exact rows


def _form(bits: int, place: int) -> str:
    """Two codes of each of two words as subnormals, on one scale and with their zeros."""
    shift = bits * place // 8 * 8  # masks reach ten bits: the mantissa
    first = bits * place - shift
    masks = ((2**bits - 1) << first) * 0x10001, ((2**bits - 1) << first + bits) * 0x10001
    scales = ((30 - first) << 10) * 0x10001, ((30 - first - bits) << 10) * 0x10001  # 2^15 and less
    word = f"shr.u32 word, $2, {shift};" if shift else "mov.b32 word, $2;"
    return f"""{{
        .reg .b32 n, word, low, high;
        mov.b32 low, {scales[0]:#x};
        mov.b32 high, {scales[1]:#x};
        {word}
        and.b32 n, word, {masks[0]:#x};
        fma.rn.f16x2 $0, n, low, $3;
        and.b32 n, word, {masks[1]:#x};
        fma.rn.f16x2 $1, n, high, $4;
    }}"""


_FOUR_0 = tl.constexpr(_form(4, 0))
_FOUR_2 = tl.constexpr(_form(4, 2))
_TWO_0 = tl.constexpr(_form(2, 0))
_TWO_2 = tl.constexpr(_form(2, 2))
_TWO_4 = tl.constexpr(_form(2, 4))
_TWO_6 = tl.constexpr(_form(2, 6))
UNIT = tl.constexpr(2.0**9)  # what numbers made of codes are to be multiplied by


@triton.jit
def _plain(words, zero, place: tl.constexpr, BITS: tl.constexpr):
    """What the forms above give for the codes at `place`, in fp32."""
    code = (words.to(tl.int32) >> (BITS * place)) & ((1 << BITS) - 1)
    return code.to(tl.float32) * (1 / UNIT) + zero


@triton.jit
def _pair(words, zeros, PLACE: tl.constexpr, BITS: tl.constexpr):
    """The codes at PLACE, an even one, and the next of words; `zeros` in units of codes, 2^-9."""
    FOUR: tl.constexpr = _FOUR_0 if PLACE == 0 else _FOUR_2
    LOW: tl.constexpr = _TWO_0 if PLACE == 0 else _TWO_2
    HIGH: tl.constexpr = _TWO_4 if PLACE == 4 else _TWO_6
    TWO: tl.constexpr = LOW if PLACE < 4 else HIGH
    if PLAIN:
        a = _plain(words, zeros[0], PLACE, BITS)
        b = _plain(words, zeros[1], PLACE + 1, BITS)
    else:
        a, b = tl.inline_asm_elementwise(
            FOUR if BITS == 4 else TWO,
            "=r,=r,r,r,r",
            [words, zeros[0], zeros[1]],
            dtype=(tl.float16, tl.float16),
            is_pure=True,
            pack=2,
        )
    return a, b


@triton.jit(do_not_specialize=["rows", "folders"])
def _kvarn_attention(
    q_ptr,
    gate_ptr,
    sink_ptr,
    ring_ptr,
    k_codes_ptr,
    v_codes_ptr,
    k_scales_ptr,
    v_scales_ptr,
    means_ptr,
    pos_ptr,
    y_ptr,
    out_ptr,
    peak_ptr,
    total_ptr,
    arrived_ptr,
    rows,
    folders,
    tiles,
    scale,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    D: tl.constexpr,
    BITS: tl.constexpr,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
    SPLITS: tl.constexpr,
    SLOTS: tl.constexpr,
    STAGES: tl.constexpr,
    PRECISION: tl.constexpr,
    PDL: tl.constexpr,
):
    GROUP: tl.constexpr = HEADS // KV_HEADS
    COLUMNS: tl.constexpr = ROWS * WIDTH  # row-major (row, head of the group, padded)
    PARTS: tl.constexpr = 8 // BITS
    WORDS: tl.constexpr = D // 4  # dims of one part of keys
    LINES: tl.constexpr = D // PARTS  # dims of one part of values
    HALFWAY: tl.constexpr = (1 << BITS) // 2
    DTYPE: tl.constexpr = tl.float32 if PLAIN else tl.float16
    above = tl.program_id(0) * ROWS
    split = tl.program_id(1)
    kv = tl.program_id(2)
    let_next_start(PDL)
    wait_for_inputs(PDL)
    first = tl.load(pos_ptr).to(tl.int32)
    end = tl.minimum(above + ROWS, rows)
    last = first + end - 1  # position of the program's last row
    column = tl.arange(0, COLUMNS)
    row = above + column // WIDTH
    head = kv * GROUP + column % WIDTH
    live = (row < rows) & (column % WIDTH < GROUP)
    p = first + row
    packed = tl.maximum(tl.maximum(p - _LAG, 0) // _TILE, 1)  # tiles before this one
    stop = tl.minimum(tl.maximum(tl.maximum(last - _LAG, 0) // _TILE, 1), tiles)
    splits = tl.minimum(stop - 1 + _EXACT, SPLITS)
    if split >= splits:
        return

    j = tl.arange(0, WORDS)
    place = (row * HEADS + head)[None, :] * D + j[:, None]
    mean = means_ptr + kv * D + j
    offset = tl.zeros([COLUMNS], tl.float32)
    queries = ()
    for c in tl.static_range(4):
        query = tl.load(q_ptr + place + c * WORDS, mask=live[None, :], other=0.0) * scale
        offset += tl.sum(query * tl.load(mean + c * WORDS)[:, None], axis=0)
        queries = queries + (query.to(DTYPE),)
    t = tl.arange(0, _HALF)
    i = tl.arange(0, LINES)
    outs = ()
    for _ in tl.static_range(PARTS):
        outs = outs + (tl.zeros([LINES, COLUMNS], tl.float32),)
    peak = tl.full([COLUMNS], float("-inf"), tl.float32)
    totals = tl.zeros([_HALF, COLUMNS], tl.float32)

    begin = (split + (SPLITS * _EXACT - _EXACT)) % SPLITS + 1
    rounds = (tl.maximum(stop - begin, 0) + SPLITS - 1) // SPLITS
    slot = kv.to(tl.int64) * tiles + begin
    k_codes_ptr += slot * (_TILE * WORDS) + t[:, None] * WORDS + j[None, :]
    v_codes_ptr += slot * (LINES * _HALF) + i[:, None] * _HALF + t[None, :]
    k_scales_ptr += slot * (2 * D + _TILE)
    v_scales_ptr += slot * (D + 2 * _TILE)
    for n in tl.range(0, rounds, num_stages=STAGES):
        codes = k_codes_ptr + n * (SPLITS * _TILE * WORDS)
        k_scale = k_scales_ptr + n * (SPLITS * (2 * D + _TILE))
        v_scale = v_scales_ptr + n * (SPLITS * (D + 2 * _TILE))
        low_words = tl.load(codes)
        high_words = tl.load(codes + _HALF * WORDS)
        low = tl.zeros([_HALF, COLUMNS], tl.float32)
        high = tl.zeros([_HALF, COLUMNS], tl.float32)
        for c in tl.static_range(0, 4, 2):
            zeros = ()
            own = ()
            for m in tl.static_range(c, c + 2):
                zero = tl.load(k_scale + D + m * WORDS + j).to(DTYPE) * (1 / UNIT) - 8 / UNIT
                zeros = zeros + (tl.broadcast_to(zero[None, :], [_HALF, WORDS]),)
                a = tl.load(k_scale + m * WORDS + j).to(DTYPE)
                own = own + (queries[m] * a[:, None],)
            k = _pair(low_words, zeros, c, 4)
            low = tl.dot(k[0], own[0], low, input_precision=PRECISION)
            low = tl.dot(k[1], own[1], low, input_precision=PRECISION)
            k = _pair(high_words, zeros, c, 4)
            high = tl.dot(k[0], own[0], high, input_precision=PRECISION)
            high = tl.dot(k[1], own[1], high, input_precision=PRECISION)
        k_scale += 2 * D + t
        blind = tl.where(begin + n * SPLITS < packed, 0.0, float("-inf"))[None, :]
        blind = tl.broadcast_to(blind, low.shape)
        size = (tl.load(k_scale).to(tl.float32) * UNIT)[:, None]
        low = tl.fma(low, tl.broadcast_to(size, low.shape), blind)
        size = (tl.load(k_scale + _HALF).to(tl.float32) * UNIT)[:, None]
        high = tl.fma(high, tl.broadcast_to(size, low.shape), blind)
        best = tl.maximum(peak, tl.max(tl.maximum(low, high), axis=0))
        base = origin(best)
        keep = tl.exp2(peak - base)
        peak = best
        low = tl.exp2(low - base[None, :])
        high = tl.exp2(high - base[None, :])
        totals = tl.fma(totals, tl.broadcast_to(keep[None, :], low.shape), low + high)
        words = tl.load(v_codes_ptr + n * (SPLITS * LINES * _HALF))
        sizes = v_scale + D + t
        low = (low * tl.load(sizes).to(tl.float32)[:, None]).to(DTYPE)
        high = (high * tl.load(sizes + _HALF).to(tl.float32)[:, None]).to(DTYPE)
        low_zero = tl.load(sizes + _TILE).to(DTYPE) * (1 / UNIT) - HALFWAY / UNIT
        low_zero = tl.broadcast_to(low_zero[None, :], [LINES, _HALF])
        high_zero = tl.load(sizes + _TILE + _HALF).to(DTYPE) * (1 / UNIT) - HALFWAY / UNIT
        high_zero = tl.broadcast_to(high_zero[None, :], [LINES, _HALF])
        sums = ()
        for c in tl.static_range(0, PARTS, 2):
            part = _pair(words, (low_zero, low_zero), c, BITS)
            a = tl.dot(part[0], low, input_precision=PRECISION)
            b = tl.dot(part[1], low, input_precision=PRECISION)
            part = _pair(words, (high_zero, high_zero), PARTS + c, BITS)
            found = (
                tl.dot(part[0], high, a, input_precision=PRECISION),
                tl.dot(part[1], high, b, input_precision=PRECISION),
            )
            for m in tl.static_range(2):
                size = tl.load(v_scale + (c + m) * LINES + i).to(tl.float32) * UNIT
                size = tl.broadcast_to(size[:, None], found[m].shape)
                sums = sums + (tl.fma(found[m], size, outs[c + m] * keep[None, :]),)
        outs = sums
    mass = tl.sum(totals, axis=0)
    sums = ()
    for c in tl.static_range(PARTS):
        mean = tl.load(means_ptr + (KV_HEADS + kv) * D + c * LINES + i)
        sums = sums + (outs[c] + mass[None, :] * mean[:, None],)
    outs = sums

    current = last // _TILE
    for item in range(split, _EXACT, SPLITS):
        half = tl.maximum(item - 2, 0)  # of the ring
        tile = current - ((current ^ (half // 2)) & 1)  # the newest one of its place
        at = tl.where(item < 2, item * _HALF, tile * _TILE + half % 2 * _HALF)
        limit = tl.where(item < 2, 0, packed * _TILE)  # of what a row sees exactly
        if (at <= last) & (at + _HALF > tl.min(limit, axis=0)):
            line = tl.where(item < 2, kv * _TILE + item * _HALF, kv * _RING + half * _HALF) * D
            step = KV_HEADS * D * tl.where(item < 2, _TILE, _RING)
            source = sink_ptr
            if item >= 2:
                source = ring_ptr
            keys = source + line + t[:, None] * D + j[None, :]
            scores = tl.dot(tl.load(keys).to(DTYPE), queries[0], input_precision=PRECISION)
            for c in tl.static_range(1, 4):
                k = tl.load(keys + c * WORDS).to(DTYPE)
                scores = tl.dot(k, queries[c], scores, input_precision=PRECISION)
            j_at = (at + t)[:, None]
            seen = (j_at >= limit[None, :]) & (j_at <= p[None, :])
            scores = tl.where(seen, scores - offset[None, :], float("-inf"))
            best = tl.maximum(peak, tl.max(scores, axis=0))
            base = origin(best)
            keep = tl.exp2(peak - base)
            peak = best
            scores = tl.exp2(scores - base[None, :])
            totals = totals * keep[None, :] + scores
            weight = scores.to(DTYPE)
            values = source + step + line + t[None, :] * D + i[:, None]
            sums = ()
            for c in tl.static_range(PARTS):
                v = tl.load(values + c * LINES).to(DTYPE)
                out = outs[c] * keep[None, :]
                sums = sums + (tl.dot(v, weight, out, input_precision=PRECISION),)
            outs = sums
    total = tl.sum(totals, axis=0)

    group = tl.program_id(0) * KV_HEADS + kv
    slot = (group * SPLITS + split) * COLUMNS + column
    tl.store(peak_ptr + slot, peak, mask=live)
    tl.store(total_ptr + slot, total, mask=live)
    for c in tl.static_range(PARTS):
        place = slot[None, :] * D + c * LINES + i[:, None]
        tl.store(out_ptr + place, outs[c], mask=live[None, :])
    settle(
        group, split, splits, folders, above, (end - above) * GROUP, kv, gate_ptr, y_ptr, out_ptr,
        peak_ptr, total_ptr, arrived_ptr, HEADS, GROUP, D, COLUMNS, WIDTH, SPLITS, SLOTS, True,
    )  # fmt: skip


@dataclass(frozen=True)
class Plan:
    """How items are dealt to programs. `splits` is numerics."""

    splits: int  # per key-value head
    rows: int  # of one program
    stages: int
    warps: int
    waiting: int = 1  # programs that may wait for others: fewer than can run at a time


def plan(device: torch.device, heads: int, kv_heads: int) -> Plan:
    """Two programs a processor: one makes numbers of codes while the other multiplies.

    16 columns each; with 32 a thread's sums, queries and numbers outgrow its registers.
    """
    if INTERPRETED:
        return Plan(splits=3, rows=4, stages=1, warps=4)
    count = processors(device)
    splits = max(1, min(64, 2 * count // kv_heads))
    few = max(1, 16 // power_of_two(heads // kv_heads))
    stages = 3 if shared_memory(device) > 200_000 else 2
    return Plan(splits, few, stages, 4, waiting=count - 1)


def launch(
    q: Tensor,
    gate: Tensor,
    sink: Tensor,
    ring: Tensor,
    k_codes: Tensor,
    v_codes: Tensor,
    k_scales: Tensor,
    v_scales: Tensor,
    means: Tensor,
    pos: Tensor,
    chosen: Plan,
) -> Tensor:
    rows, heads, d = q.shape
    kv_heads, tiles = k_codes.shape[:2]
    width = power_of_two(heads // kv_heads)
    groups = -(-rows // chosen.rows)
    most = -(-MAX_ROWS // chosen.rows)
    slots = groups * kv_heads * chosen.splits * chosen.rows * width
    out = q.new_empty(slots, d, dtype=torch.float32)
    peak, total = (q.new_empty(slots, dtype=torch.float32) for _ in range(2))
    y = torch.empty_like(gate)
    overlap = dependent_launch(q.device)
    _kvarn_attention[(groups, chosen.splits, kv_heads)](
        q,
        gate,
        sink,
        ring,
        k_codes,
        v_codes,
        k_scales,
        v_scales,
        means,
        pos,
        y,
        out,
        peak,
        total,
        counters(q.device, most * kv_heads),
        rows,
        max(1, chosen.waiting // (groups * kv_heads)),
        tiles,
        d**-0.5 * LOG2_E,
        HEADS=heads,
        KV_HEADS=kv_heads,
        D=d,
        BITS=value_bits(v_codes, d),
        ROWS=chosen.rows,
        WIDTH=width,
        SPLITS=chosen.splits,
        SLOTS=power_of_two(chosen.splits),
        STAGES=chosen.stages,
        PRECISION="ieee" if gate.dtype == torch.float32 else "tf32",
        PDL=overlap,
        num_warps=chosen.warps,
        enable_fp_fusion=False,
        launch_pdl=overlap,
    )
    return y


@variant(
    "kvarn_attention",
    "triton",
    fake,
    support=replace(SUPPORT, powers={"d_head": 32}, multiples={"capacity": TILE}),
)
def kvarn_attention(
    q: Tensor,
    gate: Tensor,
    sink: Tensor,
    ring: Tensor,
    k_codes: Tensor,
    v_codes: Tensor,
    k_scales: Tensor,
    v_scales: Tensor,
    means: Tensor,
    pos: Tensor,
) -> Tensor:
    """As the reference, for 1 to 16 rows and heads whose width is a power of two from 32 on.

    Products take fp16 on a GPU. Rows at and past the capacity see all tiles.
    """
    rows, heads, d = q.shape
    kv_heads = k_codes.shape[0]
    exact = {"sink": sink, "ring": ring, "k_scales": k_scales, "v_scales": v_scales}
    codes = {"k_codes": k_codes, "v_codes": v_codes}
    check("kvarn_attention", rows, q=q, gate=gate, means=means, **exact, **codes)
    same_dtype("kvarn_attention", **exact)
    same_dtype("kvarn_attention", q=q, means=means)
    least = 32 if INTERPRETED else 64  # tensor cores take parts from 16 dims on
    if d < least or d & (d - 1) or heads % kv_heads:
        raise ValueError(
            f"kvarn_attention: triton needs a head width that is a power of two from {least} on and"
            f" heads in whole groups, got {d} and {heads} over {kv_heads};"
            " use kernel.kvarn_attention=tile"
        )
    chosen = plan(q.device, heads, kv_heads)
    return launch(q, gate, sink, ring, k_codes, v_codes, k_scales, v_scales, means, pos, chosen)
