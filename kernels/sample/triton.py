"""Cut, then the best of each block and of the blocks: two launches, choices read on the device.

The last block of a row to finish (an integer counter, left at zero) picks among the blocks' best.
Greedy rows and rows without cuts leave `_cut` at once. Otherwise it collects the candidates that
can stay: top-k cannot reach below the k-th best of its lanes' maxima, nor top-p below what the
smallest possible total leaves over. Bisection over the bits of their scores then finds the score at
which candidates end, and the last id that stays among equals: exact for any cut, slow for wide
ones. What stays is a prefix of the order (score down, id up), as in the reference; there mass is
summed in another order, so a candidate at the very edge of top-p may fall differently.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.define import MAX_ROWS, variant
from kernels.gpu import (
    INTERPRETED,
    SUPPORT,
    check,
    counters,
    dependent_launch,
    let_next_start,
    power_of_two,
    wait_for_inputs,
)
from kernels.rounding import log1p
from kernels.sample.reference import fake

BLOCK = 4096  # columns of a program that looks for its best
WIDE = 1024 if INTERPRETED else 8192  # columns at a time of a program that reads a whole row
STEP = 1024  # candidates at a time
LEAST = tl.constexpr(-(2**31))


@triton.jit
def _mix(x):
    x = x ^ (x >> 16)
    x = x * 0x21F0AAAD
    x = x ^ (x >> 15)
    x = x * 0x735A2D97
    return x ^ (x >> 15)


@triton.jit
def _gumbel(seed_ptr, position, token):
    """Noise of `token` (int32) at `position` (int64), as in the reference, in 32-bit integers."""
    first = tl.load(seed_ptr).to(tl.uint32) ^ _mix(position.to(tl.uint32))
    second = tl.load(seed_ptr + 1).to(tl.uint32) ^ _mix((position + 1).to(tl.uint32))
    bits = _mix(_mix(_mix(first) ^ token.to(tl.uint32)) + _mix(second))
    v = tl.minimum((bits.to(tl.float32) + 0.5) * 2.3283064365386963e-10, 1.0 - 2.0**-24)
    return -tl.log(-log1p(-v))


@triton.jit
def _key(score):
    """An int32 that orders as the scores do; -0 counts as 0."""
    bits = (score + 0.0).to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _score_of(key):
    return (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def _above(key_ptr, n, top, bound, STEP: tl.constexpr):
    """How many candidates have a key above `bound`, and the sum of exp(score - top) over them."""
    count = tl.zeros([STEP], tl.int32)
    mass = tl.zeros([STEP], tl.float32)
    for start in range(0, n, STEP):
        i = start + tl.arange(0, STEP)
        key = tl.load(key_ptr + i, mask=i < n, other=LEAST)
        count += (key > bound).to(tl.int32)
        mass += tl.where(key > bound, tl.exp(_score_of(key) - top), 0.0)
    return tl.sum(count, axis=0), tl.sum(mass, axis=0)


@triton.jit
def _equal(key_ptr, id_ptr, n, wanted, last, STEP: tl.constexpr):
    """How many candidates with an id up to `last` have this key."""
    count = tl.zeros([STEP], tl.int32)
    for start in range(0, n, STEP):
        i = start + tl.arange(0, STEP)
        key = tl.load(key_ptr + i, mask=i < n, other=LEAST)
        token = tl.load(id_ptr + i, mask=i < n, other=2147483647)
        count += ((key == wanted) & (token <= last)).to(tl.int32)
    return tl.sum(count, axis=0)


@triton.jit
def _cut(
    logits_ptr,
    temperature_ptr,
    top_k_ptr,
    top_p_ptr,
    min_p_ptr,
    edge_ptr,
    last_ptr,
    top_ptr,
    key_ptr,
    id_ptr,
    ids,
    stride,
    WIDE: tl.constexpr,
    STEP: tl.constexpr,
    PDL: tl.constexpr,
):
    let_next_start(PDL)
    wait_for_inputs(PDL)
    row = tl.program_id(0)
    heat = tl.load(temperature_ptr).to(tl.float32)
    k = tl.load(top_k_ptr).to(tl.int32)
    p = tl.load(top_p_ptr).to(tl.float32)
    k = tl.where(k < ids, k, 0)
    cuts = tl.where(heat != 0.0, tl.where(k > 0, 2, tl.where(p < 1.0, 2, 0)), 0)
    cuts += tl.where(heat != 0.0, tl.where(tl.load(min_p_ptr) > 0.0, 1, 0), 0)
    low = tl.full([], LEAST, tl.int64)  # everything stays
    last = ids
    top = 0.0
    if cuts > 0:
        row_ptr = logits_ptr + row.to(tl.int64) * stride
        peaks = tl.full([WIDE], float("-inf"), tl.float32)
        for start in range(0, ids, WIDE):
            col = start + tl.arange(0, WIDE)
            x = tl.load(row_ptr + col, mask=col < ids, other=float("-inf")).to(tl.float32)
            peaks = tl.maximum(peaks, x / heat)
        top = tl.max(peaks, axis=0)
        if cuts > 1:
            high = _key(top).to(tl.int64)
            most = high
            floor = low
            if k > 0:
                if k < WIDE:  # k lanes reach the floor, so k candidates do
                    above = high + 1
                    while above - floor > 1:
                        middle = (floor + above) >> 1
                        reach = tl.sum((_key(peaks) >= middle.to(tl.int32)).to(tl.int32), axis=0)
                        above = tl.where(reach < k, middle, above)
                        floor = tl.where(reach < k, floor, middle)
            else:  # all that lies lower weighs less than 1 - p together
                floor = _key(top + tl.log((1.0 - p) / ids) - 0.01).to(tl.int64)
            key_ptr += row.to(tl.int64) * ids
            id_ptr += row.to(tl.int64) * ids
            n = 0
            for start in range(0, ids, WIDE):
                col = start + tl.arange(0, WIDE)
                x = tl.load(row_ptr + col, mask=col < ids, other=float("-inf")).to(tl.float32)
                key = _key(x / heat)
                inside = ((key >= floor.to(tl.int32)) & (col < ids)).to(tl.int32)
                found = tl.sum(inside, axis=0)
                if found > 0:
                    place = n + tl.cumsum(inside, axis=0) - 1
                    tl.store(key_ptr + place, key, mask=inside == 1)
                    tl.store(id_ptr + place, col, mask=inside == 1)
                n += found
            tl.debug_barrier()

            low = floor - 1
            stay = ids  # of the candidates equal to the last one kept
            if k > 0:
                while high - low > 1:  # k or more candidates above low, fewer above high
                    middle = (low + high) >> 1
                    count, _mass = _above(key_ptr, n, top, middle.to(tl.int32), STEP)
                    high = tl.where(count < k, middle, high)
                    low = tl.where(count < k, low, middle)
                low = high
                count, mass = _above(key_ptr, n, top, low.to(tl.int32), STEP)
                stay = k - count
                mass += stay * tl.exp(_score_of(low.to(tl.int32)) - top)
                low -= 1
            else:  # the whole mass, also of what lies lower
                parts = tl.zeros([WIDE], tl.float32)
                for start in range(0, ids, WIDE):
                    col = start + tl.arange(0, WIDE)
                    x = tl.load(row_ptr + col, mask=col < ids, other=float("-inf")).to(tl.float32)
                    parts += tl.exp(x / heat - top)
                mass = tl.sum(parts, axis=0)
            edge = low + 1
            if p < 1.0:
                target = p * mass
                high = most
                while high - low > 1:  # the target's mass or more above low, less above high
                    middle = (low + high) >> 1
                    count, mass = _above(key_ptr, n, top, middle.to(tl.int32), STEP)
                    high = tl.where(mass < target, middle, high)
                    low = tl.where(mass < target, low, middle)
                count, mass = _above(key_ptr, n, top, high.to(tl.int32), STEP)
                each = tl.exp(_score_of(high.to(tl.int32)) - top)
                need = tl.ceil((target - mass) / tl.maximum(each, 1e-30))
                need = tl.maximum(tl.minimum(need, ids * 1.0), 1.0).to(tl.int32)
                stay = tl.where(high == edge, tl.minimum(stay, need), need)
                edge = high
            low = edge
            if _equal(key_ptr, id_ptr, n, edge.to(tl.int32), ids, STEP) > stay:
                before = tl.full([], -1, tl.int32)
                last = ids - 1
                while last - before > 1:
                    middle_id = (before + last) >> 1
                    equal = _equal(key_ptr, id_ptr, n, edge.to(tl.int32), middle_id, STEP)
                    last = tl.where(equal >= stay, middle_id, last)
                    before = tl.where(equal >= stay, before, middle_id)
    tl.store(edge_ptr + row, low.to(tl.int32))
    tl.store(last_ptr + row, last)
    tl.store(top_ptr + row, top)


@triton.jit
def _best(
    logits_ptr,
    position_ptr,
    temperature_ptr,
    min_p_ptr,
    seed_ptr,
    edge_ptr,
    last_ptr,
    top_ptr,
    score_ptr,
    token_ptr,
    out_ptr,
    arrived_ptr,
    ids,
    stride,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
    PDL: tl.constexpr,
):
    let_next_start(PDL)
    wait_for_inputs(PDL)
    row = tl.program_id(1)
    token = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    real = token < ids
    place = logits_ptr + row.to(tl.int64) * stride + token
    score = tl.load(place, mask=real, other=float("-inf")).to(tl.float32)
    heat = tl.load(temperature_ptr).to(tl.float32)
    if heat != 0.0:
        score = score / heat
        edge = tl.load(edge_ptr + row)
        least = tl.load(min_p_ptr).to(tl.float32)
        key = _key(score)
        stay = (key > edge) | ((key == edge) & (token <= tl.load(last_ptr + row)))
        if least > 0.0:
            stay = stay & (tl.exp(score - tl.load(top_ptr + row)) >= tl.minimum(least, 1.0))
        noise = _gumbel(seed_ptr, tl.load(position_ptr) + row, token)
        score = tl.where(stay & real, score + noise, float("-inf"))
    best = tl.max(score, axis=0)
    blocks = tl.num_programs(0)
    score_ptr += row * blocks
    token_ptr += row * blocks
    tl.store(score_ptr + tl.program_id(0), best)
    first = tl.min(tl.where((score == best) & real, token, ids - 1), axis=0)
    tl.store(token_ptr + tl.program_id(0), first)
    tl.debug_barrier()  # the block's best before its arrival
    if tl.atomic_add(arrived_ptr + row, 1, sem="acq_rel") == blocks - 1:
        tl.store(arrived_ptr + row, 0)
        block = tl.arange(0, BLOCKS)
        mask = block < blocks
        bests = tl.load(score_ptr + block, mask=mask, other=float("-inf"), cache_modifier=".cg")
        tokens = tl.load(token_ptr + block, mask=mask, other=2147483647, cache_modifier=".cg")
        winners = tl.where(bests == tl.max(bests, axis=0), tokens, 2147483647)
        tl.store(out_ptr + row, tl.min(winners, axis=0).to(tl.int64))


@variant("sample", "triton", fake, support=SUPPORT)
def sample(
    logits: Tensor,
    position: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    seed: Tensor,
    ids: int,
) -> Tensor:
    """As the reference, without asking the host for anything."""
    rows, vocab = logits.shape
    if logits.stride(1) != 1:
        raise ValueError(f"sample: rows of logits must be contiguous, got {logits.stride()}")
    check("sample", 1, logits=logits[0], seed=seed)
    if not 0 < ids <= vocab:
        raise ValueError(f"sample: ids must be 1 .. {vocab}, the width of logits, got {ids}")
    blocks = triton.cdiv(ids, BLOCK)
    fp32, int32 = temperature.new_empty, position.new_empty
    top, score = fp32(rows, dtype=torch.float32), fp32(rows, blocks, dtype=torch.float32)
    edge, last = (int32(rows, dtype=torch.int32) for _ in range(2))
    key, token_of_key = (int32(rows, ids, dtype=torch.int32) for _ in range(2))
    token = int32(rows, blocks, dtype=torch.int32)
    out = int32(rows, dtype=torch.int64)
    overlap = dependent_launch(logits.device)
    _cut[(rows,)](
        logits,
        temperature,
        top_k,
        top_p,
        min_p,
        edge,
        last,
        top,
        key,
        token_of_key,
        ids,
        logits.stride(0),
        WIDE=WIDE,
        STEP=STEP,
        PDL=overlap,
        num_warps=16,
        enable_fp_fusion=False,
        launch_pdl=overlap,
    )
    _best[(blocks, rows)](
        logits,
        position,
        temperature,
        min_p,
        seed,
        edge,
        last,
        top,
        score,
        token,
        out,
        counters(logits.device, power_of_two(max(rows, MAX_ROWS))),
        ids,
        logits.stride(0),
        BLOCK=BLOCK,
        BLOCKS=power_of_two(blocks),
        PDL=overlap,
        num_warps=8,
        enable_fp_fusion=False,
        launch_pdl=overlap,
    )
    return out
