"""Cuts, then the best of each block and of the blocks; choices are read on the device.

Without cuts `_best` runs alone. The last block of a row to finish (an integer counter, left at
zero) picks among the blocks' best.

With cuts four launches find, in every row, the score at which candidates end and the last id that
stays among equals. Those that read logits spread a row over many programs, as one would starve:

    _peak    the largest score of each block
    _bins    how many scores lie in each of 254 bins below the top; the last block of a row finds in
             which bin top-k ends, and between which bins top-p must: counts bound the mass of a bin
    _gather  the scores of those bins
    _ends    both ends among them, by bisection

Masses are 64-bit integers, exp(score - top) in steps of 2^-40, so that they add up to the same sum
in any order: no cut depends on which block was first, nor a row on others. Bins and bounds decide
how much `_gather` has to look at, not what it finds. What stays is a prefix of the order (score
down, id up), as in the reference; there mass is a rounded sum of floats, so a candidate at the very
edge of top-p may fall differently.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.define import MAX_ROWS, variant
from kernels.gpu import (
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

BLOCK = 4096  # columns of a program
BINS = 256  # the last counts what cannot stay and is not kept
STEP = 2048  # candidates at a time; the first ones stay in registers
LEAST = tl.constexpr(-2139095041)  # the key of -inf


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
def _settings(temperature_ptr, top_k_ptr, top_p_ptr, ids):
    """Temperature, top_k or 0 where it keeps all, top_p."""
    k = tl.load(top_k_ptr)
    k = tl.where(k < ids, k, 0).to(tl.int32)
    return tl.load(temperature_ptr).to(tl.float32), k, tl.load(top_p_ptr).to(tl.float32)


@triton.jit
def _weight(score, top):
    """exp(score - top) in steps of 2^-40; 0 for -inf."""
    return (tl.exp(score - top) * 1099511627776.0).to(tl.int64)


@triton.jit
def _bin(score, top, scale, BINS: tl.constexpr):
    """Bins 0, 1, .. go down from the top; BINS - 2 holds all the rest."""
    return tl.minimum(
        tl.maximum((tl.minimum((top - score) * scale, BINS)).to(tl.int32), 0), BINS - 2
    )


@triton.jit
def _alive(score, top, least, real):
    """What min-p leaves; -inf is never drawn where there is anything else."""
    floor = tl.where(least > 0.0, tl.minimum(least, 1.0), -1.0)
    return (tl.exp(score - top) >= floor) & real & (score > float("-inf"))


@triton.jit
def _top_and_scale(
    peak_ptr, row, heat, k, p, ids, blocks, BLOCKS: tl.constexpr, BINS: tl.constexpr
):
    """The best score of a row, and bins per unit of score such that the cuts end within the bins.

    Every block's best is among the best `blocks`; and what lies log(ids / (1 - p)) below the top
    weighs less than 1 - p altogether.
    """
    block = tl.arange(0, BLOCKS)
    peaks = tl.load(peak_ptr + row * blocks + block, mask=block < blocks, other=float("-inf"))
    top = tl.max(peaks, axis=0) / heat
    lowest = tl.min(tl.where(block < blocks, peaks, float("inf")), axis=0) / heat
    depth = tl.where(k <= blocks, top - lowest, 40.0)
    depth = tl.where(k > 0, depth, tl.log(ids / tl.maximum(1.0 - p, 1e-9)) + 0.01)
    depth = tl.where(depth < 1e30, depth, 40.0)
    return top, (BINS - 2.5) / tl.maximum(depth, 1e-6)


@triton.jit
def _above(keys, key_ptr, n, top, bound, STEP: tl.constexpr):
    """How many candidates have a key above `bound`, and their mass; `keys` holds the first ones."""
    inside = keys > bound
    count = inside.to(tl.int32)
    mass = tl.where(inside, _weight(_score_of(keys), top), 0)
    for start in range(STEP, n, STEP):
        i = start + tl.arange(0, STEP)
        more = tl.load(key_ptr + i, mask=i < n, other=LEAST)
        inside = more > bound
        count += inside.to(tl.int32)
        mass += tl.where(inside, _weight(_score_of(more), top), 0)
    return tl.sum(count, axis=0), tl.sum(mass, axis=0)


@triton.jit
def _equal(keys, tokens, key_ptr, id_ptr, n, wanted, last, STEP: tl.constexpr):
    """How many candidates with an id up to `last` have this key."""
    count = ((keys == wanted) & (tokens <= last)).to(tl.int32)
    for start in range(STEP, n, STEP):
        i = start + tl.arange(0, STEP)
        key = tl.load(key_ptr + i, mask=i < n, other=LEAST)
        token = tl.load(id_ptr + i, mask=i < n, other=2147483647)
        count += ((key == wanted) & (token <= last)).to(tl.int32)
    return tl.sum(count, axis=0)


@triton.jit
def _span(keys, key_ptr, n, top, scale, first, last, STEP: tl.constexpr, BINS: tl.constexpr):
    """The least and the largest key of the candidates in bins first .. last."""
    low = tl.full([STEP], 2147483647, tl.int32)
    high = tl.full([STEP], LEAST, tl.int32)
    more = keys
    for start in range(0, n, STEP):
        i = start + tl.arange(0, STEP)
        if start > 0:
            more = tl.load(key_ptr + i, mask=i < n, other=LEAST)
        bins = _bin(_score_of(more), top, scale, BINS)
        inside = (bins >= first) & (bins <= last) & (i < n)
        low = tl.minimum(low, tl.where(inside, more, 2147483647))
        high = tl.maximum(high, tl.where(inside, more, LEAST))
    return tl.min(low, axis=0).to(tl.int64), tl.max(high, axis=0).to(tl.int64)


@triton.jit
def _peak(
    logits_ptr, temperature_ptr, peak_ptr, ids, stride, BLOCK: tl.constexpr, PDL: tl.constexpr
):
    let_next_start(PDL)
    wait_for_inputs(PDL)
    if tl.load(temperature_ptr) != 0.0:
        row = tl.program_id(1)
        col = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        place = logits_ptr + row.to(tl.int64) * stride + col
        x = tl.load(place, mask=col < ids, other=float("-inf")).to(tl.float32)
        tl.store(peak_ptr + row * tl.num_programs(0) + tl.program_id(0), tl.max(x, axis=0))


@triton.jit
def _bins(
    logits_ptr,
    temperature_ptr,
    top_k_ptr,
    top_p_ptr,
    min_p_ptr,
    peak_ptr,
    bound_ptr,
    count_ptr,
    row_ptr,
    mass_ptr,
    ids,
    stride,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
    BINS: tl.constexpr,
    PDL: tl.constexpr,
):
    let_next_start(PDL)
    wait_for_inputs(PDL)
    heat, k, p = _settings(temperature_ptr, top_k_ptr, top_p_ptr, ids)
    if (heat != 0.0) & ((k > 0) | (p < 1.0)):
        row = tl.program_id(1)
        blocks = tl.num_programs(0)
        least = tl.load(min_p_ptr).to(tl.float32)
        top, scale = _top_and_scale(peak_ptr, row, heat, k, p, ids, blocks, BLOCKS, BINS)
        col = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        place = logits_ptr + row.to(tl.int64) * stride + col
        x = tl.load(place, mask=col < ids, other=float("-inf")).to(tl.float32)
        score = x / heat
        alive = _alive(score, top, least, col < ids)
        bins = tl.where(alive, _bin(score, top, scale, BINS), BINS - 1)
        b = tl.arange(0, BINS)
        count_ptr += row * BINS
        row_ptr += row * 2
        mass_ptr += row * 4
        found = tl.histogram(bins, BINS)
        tl.atomic_add(count_ptr + b, found, mask=(found > 0) & (b < BINS - 1), sem="relaxed")
        if p < 1.0:
            mass = tl.sum(tl.where(alive, _weight(score, top), 0), axis=0)
            tl.atomic_add(mass_ptr, mass, sem="relaxed")
        tl.debug_barrier()  # the block's counts before its arrival
        if tl.atomic_add(row_ptr, 1, sem="acq_rel") == blocks - 1:
            tl.store(row_ptr, 0)
            count = tl.load(count_ptr + b, cache_modifier=".cg")
            tl.store(count_ptr + b, 0)
            reach = tl.cumsum(count, axis=0)
            cut = (k > 0) & (k < tl.sum(count, axis=0))
            last = tl.where(cut, tl.sum((reach < k).to(tl.int32), axis=0), BINS - 2)
            above = tl.max(tl.where(b < last, reach, 0), axis=0)
            first = tl.full([], 1, tl.int32)
            until = tl.full([], 0, tl.int32)
            if p < 1.0:  # the mass below a bin's end must come to at most 1 - p of all
                part = tl.where((b == last) & cut, k - above, tl.where(b > last, 0, count))
                kept = part.to(tl.float32)
                most = kept * tl.exp(-(b / scale))
                fewest = tl.where(b < BINS - 2, kept * tl.exp(-((b + 1) / scale)), 0.0)
                high = tl.sum(most, axis=0)
                low = tl.sum(fewest, axis=0)
                if cut == 0:
                    high = tl.load(mass_ptr, cache_modifier=".cg").to(tl.float32) / 1099511627776.0
                    low = high
                most = tl.cumsum(most, axis=0, reverse=True) - most
                fewest = tl.cumsum(fewest, axis=0, reverse=True) - fewest
                over = fewest > (1.0 - p) * high * 1.001 + 1e-6
                first = tl.sum((over & (b < last)).to(tl.int32), axis=0)
                over = most > (1.0 - p) * low * 0.999 - 1e-6
                until = tl.sum((over & (b < last)).to(tl.int32), axis=0)
            bound_ptr += row * 4
            tl.store(bound_ptr, first)
            tl.store(bound_ptr + 1, until)
            tl.store(bound_ptr + 2, tl.where(cut, last, -1))
            tl.store(bound_ptr + 3, above)


@triton.jit
def _gather(
    logits_ptr,
    temperature_ptr,
    top_k_ptr,
    top_p_ptr,
    min_p_ptr,
    peak_ptr,
    bound_ptr,
    row_ptr,
    mass_ptr,
    key_ptr,
    id_ptr,
    ids,
    stride,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
    BINS: tl.constexpr,
    PDL: tl.constexpr,
):
    let_next_start(PDL)
    wait_for_inputs(PDL)
    heat, k, p = _settings(temperature_ptr, top_k_ptr, top_p_ptr, ids)
    if (heat != 0.0) & ((k > 0) | (p < 1.0)):
        row = tl.program_id(1)
        blocks = tl.num_programs(0)
        least = tl.load(min_p_ptr).to(tl.float32)
        top, scale = _top_and_scale(peak_ptr, row, heat, k, p, ids, blocks, BLOCKS, BINS)
        first = tl.load(bound_ptr + row * 4)
        until = tl.load(bound_ptr + row * 4 + 1)
        end = tl.load(bound_ptr + row * 4 + 2)
        row_ptr += row * 2
        mass_ptr += row * 4
        key_ptr += row.to(tl.int64) * ids
        id_ptr += row.to(tl.int64) * ids
        col = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        place = logits_ptr + row.to(tl.int64) * stride + col
        x = tl.load(place, mask=col < ids, other=float("-inf")).to(tl.float32)
        score = x / heat
        alive = _alive(score, top, least, col < ids)
        bins = _bin(score, top, scale, BINS)
        inside = alive & (((bins >= first) & (bins <= until)) | (bins == end))
        if p < 1.0:
            weight = tl.where(alive, _weight(score, top), 0)
            mass = tl.sum(tl.where(bins < first, weight, 0), axis=0)
            tl.atomic_add(mass_ptr + 1, mass, sem="relaxed")
            mass = tl.sum(tl.where((bins > until) & (bins < end), weight, 0), axis=0)
            tl.atomic_add(mass_ptr + 2, mass, sem="relaxed")
        found = tl.sum(inside.to(tl.int32), axis=0)
        if found > 0:
            at = tl.atomic_add(row_ptr + 1, found, sem="relaxed")
            at += tl.cumsum(inside.to(tl.int32), axis=0) - 1
            tl.store(key_ptr + at, _key(score), mask=inside)
            tl.store(id_ptr + at, col, mask=inside)


@triton.jit
def _ends(
    temperature_ptr,
    top_k_ptr,
    top_p_ptr,
    peak_ptr,
    bound_ptr,
    row_ptr,
    mass_ptr,
    key_ptr,
    id_ptr,
    edge_ptr,
    last_ptr,
    ids,
    blocks,
    BLOCKS: tl.constexpr,
    BINS: tl.constexpr,
    STEP: tl.constexpr,
    PDL: tl.constexpr,
):
    let_next_start(PDL)
    wait_for_inputs(PDL)
    heat, k, p = _settings(temperature_ptr, top_k_ptr, top_p_ptr, ids)
    row = tl.program_id(0)
    if (k == 0) & (p >= 1.0):
        tl.store(edge_ptr + row, LEAST)
        tl.store(last_ptr + row, ids)
    elif heat != 0.0:
        top, scale = _top_and_scale(peak_ptr, row, heat, k, p, ids, blocks, BLOCKS, BINS)
        first = tl.load(bound_ptr + row * 4)
        until = tl.load(bound_ptr + row * 4 + 1)
        end = tl.load(bound_ptr + row * 4 + 2)
        row_ptr += row * 2
        mass_ptr += row * 4
        key_ptr += row.to(tl.int64) * ids
        id_ptr += row.to(tl.int64) * ids
        n = tl.load(row_ptr + 1)
        i = tl.arange(0, STEP)
        keys = tl.load(key_ptr + i, mask=i < n, other=LEAST)
        tokens = tl.load(id_ptr + i, mask=i < n, other=2147483647)
        mass = tl.load(mass_ptr)  # without top-k
        ahead = tl.load(mass_ptr + 1)
        between = tl.load(mass_ptr + 2)
        tl.debug_barrier()  # read by all before it is left at zero
        tl.store(row_ptr + 1, 0)
        for j in range(3):
            tl.store(mass_ptr + j, tl.full([], 0, tl.int64))
        edge = tl.full([], LEAST, tl.int64)  # everything stays
        stay = ids  # of the candidates equal to the last one kept
        if end >= 0:
            low, high = _span(keys, key_ptr, n, top, scale, end, end, STEP, BINS)
            higher, _mass = _above(keys, key_ptr, n, top, high.to(tl.int32), STEP)
            need = k - tl.load(bound_ptr + row * 4 + 3) + higher
            low -= 1
            while high - low > 1:  # as many as needed lie above low, fewer above high
                middle = (low + high) >> 1
                count, _mass = _above(keys, key_ptr, n, top, middle.to(tl.int32), STEP)
                high = tl.where(count < need, middle, high)
                low = tl.where(count < need, low, middle)
            edge = high
            count, mass = _above(keys, key_ptr, n, top, edge.to(tl.int32), STEP)
            stay = need - count
            mass += ahead + between + stay * _weight(_score_of(edge.to(tl.int32)), top)
        if (p < 1.0) & (first <= until):
            target = tl.ceil(mass.to(tl.float64) * p.to(tl.float64)).to(tl.int64)
            target = tl.maximum(target, 1)
            low, high = _span(keys, key_ptr, n, top, scale, first, until, STEP, BINS)
            low = tl.maximum(low, edge) - 1
            while high - low > 1:  # the target or more lies above low, less above high
                middle = (low + high) >> 1
                _count, mass = _above(keys, key_ptr, n, top, middle.to(tl.int32), STEP)
                short = ahead + mass < target
                high = tl.where(short, middle, high)
                low = tl.where(short, low, middle)
            _count, mass = _above(keys, key_ptr, n, top, high.to(tl.int32), STEP)
            each = tl.maximum(_weight(_score_of(high.to(tl.int32)), top), 1)
            need = (target - ahead - mass + each - 1) // each
            need = tl.maximum(tl.minimum(need, ids), 1).to(tl.int32)
            stay = tl.where(high == edge, tl.minimum(stay, need), need)
            edge = high
        last = ids
        wanted = edge.to(tl.int32)
        if _equal(keys, tokens, key_ptr, id_ptr, n, wanted, ids, STEP) > stay:
            before = tl.full([], -1, tl.int32)
            last = ids - 1
            while last - before > 1:
                half = (before + last) >> 1
                equal = _equal(keys, tokens, key_ptr, id_ptr, n, wanted, half, STEP)
                last = tl.where(equal >= stay, half, last)
                before = tl.where(equal >= stay, before, half)
        tl.store(edge_ptr + row, wanted)
        tl.store(last_ptr + row, last)


@triton.jit
def _best(
    logits_ptr,
    position_ptr,
    temperature_ptr,
    min_p_ptr,
    seed_ptr,
    edge_ptr,
    last_ptr,
    peak_ptr,
    score_ptr,
    token_ptr,
    out_ptr,
    arrived_ptr,
    ids,
    stride,
    CUTS: tl.constexpr,
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
        stay = real
        if CUTS:
            edge = tl.load(edge_ptr + row)
            least = tl.load(min_p_ptr).to(tl.float32)
            key = _key(score)
            stay = stay & ((key > edge) | ((key == edge) & (token <= tl.load(last_ptr + row))))
            if least > 0.0:
                block = tl.arange(0, BLOCKS)
                mask = block < tl.num_programs(0)
                peak_ptr += row * tl.num_programs(0)
                peaks = tl.load(peak_ptr + block, mask=mask, other=float("-inf"))
                stay = _alive(score, tl.max(peaks, axis=0) / heat, least, stay)
        noise = _gumbel(seed_ptr, tl.load(position_ptr) + row, token)
        score = tl.where(stay, score + noise, float("-inf"))
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
    cuts: bool = True,
) -> Tensor:
    """As the reference, without asking the host for anything."""
    rows, vocab = logits.shape
    if logits.stride(1) != 1:
        raise ValueError(f"sample: rows of logits must be contiguous, got {logits.stride()}")
    check("sample", 1, logits=logits[0], seed=seed)
    if not 0 < ids <= vocab:
        raise ValueError(f"sample: ids must be 1 .. {vocab}, the width of logits, got {ids}")
    blocks = triton.cdiv(ids, BLOCK)
    grid, stride = (blocks, rows), logits.stride(0)
    fp32, int32 = temperature.new_empty, position.new_empty
    peak, score = (fp32(rows, blocks, dtype=torch.float32) for _ in range(2))
    edge, last = (int32(rows, dtype=torch.int32) for _ in range(2))
    token = int32(rows, blocks, dtype=torch.int32)
    out = int32(rows, dtype=torch.int64)
    most = power_of_two(max(rows, MAX_ROWS))
    overlap = dependent_launch(logits.device)
    sizes = {"BLOCK": BLOCK, "PDL": overlap}
    options = {"num_warps": 8, "enable_fp_fusion": False, "launch_pdl": overlap}
    if cuts:
        zeros = counters(logits.device, most * (BINS + 10))
        count, row, mass = zeros.split([most * BINS, most * 2, most * 8])
        mass = mass.view(torch.int64)
        key, token_of_key = (int32(rows, ids, dtype=torch.int32) for _ in range(2))
        bound = int32(rows, 4, dtype=torch.int32)
        settings = (temperature, top_k, top_p, min_p)
        wide = {"BLOCKS": power_of_two(blocks), "BINS": BINS, **sizes}
        _peak[grid](logits, temperature, peak, ids, stride, **sizes, **options)
        _bins[grid](
            logits, *settings, peak, bound, count, row, mass, ids, stride, **wide, **options
        )
        found = (row, mass, key, token_of_key)
        _gather[grid](logits, *settings, peak, bound, *found, ids, stride, **wide, **options)
        _ends[(rows,)](
            *settings[:3],
            peak,
            bound,
            *found,
            edge,
            last,
            ids,
            blocks,
            BLOCKS=wide["BLOCKS"],
            BINS=BINS,
            STEP=STEP,
            PDL=overlap,
            **options,
        )
    _best[grid](
        logits,
        position,
        temperature,
        min_p,
        seed,
        edge,
        last,
        peak,
        score,
        token,
        out,
        counters(logits.device, most),
        ids,
        stride,
        CUTS=cuts,
        BLOCKS=power_of_two(blocks),
        **sizes,
        **options,
    )
    return out
