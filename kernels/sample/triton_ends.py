"""Where cuts end: the score at which candidates end and the last id that stays among equals.

One program a row, among the candidates that `_gather` left (triton_bins.py): by bisection of their
keys, then of the ids of equals. What stays is a prefix of the order (score down, id up), as in the
reference; there mass is a rounded sum of floats, so a candidate at the very edge of top-p may fall
differently. How the ends are searched for may change, where they are may not.
"""
# pyright: reportAttributeAccessIssue=false
# (What Triton's reductions return is known inside its compiler alone.)

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from kernels.gpu import let_next_start, power_of_two, wait_for_inputs
from kernels.sample.triton_cuts import BINS, bin_of, settings, top_and_scale, weight_of
from kernels.sample.triton_parts import score_of

STEP = 2048  # candidates at a time; the first ones stay in registers
LEAST = tl.constexpr(-2139095041)  # the key of -inf


@triton.jit
def _above(keys, key_ptr, n, top, bound, STEP: tl.constexpr):
    """How many candidates have a key above `bound`, and their mass; `keys` holds the first ones."""
    inside = keys > bound
    count = inside.to(tl.int32)
    mass = tl.where(inside, weight_of(score_of(keys), top), 0)
    for start in range(STEP, n, STEP):
        i = start + tl.arange(0, STEP)
        more = tl.load(key_ptr + i, mask=i < n, other=LEAST)
        inside = more > bound
        count += inside.to(tl.int32)
        mass += tl.where(inside, weight_of(score_of(more), top), 0)
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
        bins = bin_of(score_of(more), top, scale, BINS)
        inside = (bins >= first) & (bins <= last) & (i < n)
        low = tl.minimum(low, tl.where(inside, more, 2147483647))
        high = tl.maximum(high, tl.where(inside, more, LEAST))
    return tl.min(low, axis=0).to(tl.int64), tl.max(high, axis=0).to(tl.int64)


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
    heat, k, p = settings(temperature_ptr, top_k_ptr, top_p_ptr, ids)
    row = tl.program_id(0)
    if (k == 0) & (p >= 1.0):
        tl.store(edge_ptr + row, LEAST)
        tl.store(last_ptr + row, ids)
    elif heat != 0.0:
        top, scale = top_and_scale(peak_ptr, row, heat, k, p, ids, blocks, BLOCKS, BINS)
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
            mass += ahead + between + stay * weight_of(score_of(edge.to(tl.int32)), top)
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
            each = tl.maximum(weight_of(score_of(high.to(tl.int32)), top), 1)
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


def launch_ends(
    scalars: tuple[Tensor, Tensor, Tensor],
    peak: Tensor,
    bound: Tensor,
    found: tuple[Tensor, Tensor, Tensor, Tensor],
    edge: Tensor,
    last: Tensor,
    ids: int,
    options: dict[str, Any],
) -> None:
    """Writes edge [rows], a key, and last [rows], an id; scalars: temperature, top_k, top_p."""
    rows, blocks = peak.shape
    _ends[(rows,)](
        *scalars,
        peak,
        bound,
        *found,
        edge,
        last,
        ids,
        blocks,
        BLOCKS=power_of_two(blocks),
        BINS=BINS,
        STEP=STEP,
        **options,
    )
