"""The launches of a cut that read logits: which scores its ends can be among, by counting in bins.

They spread a row over many programs, as one would starve:

    _peak    the largest score of each block
    _bins    how many scores lie in each of 254 bins below the top; the last block of a row finds in
             which bin top-k ends, and between which bins top-p must: counts bound the mass of a bin
    _gather  the scores of those bins

Bounds decide how much `_gather` has to look at, not what is found among it: they may be wider or
tighter, if only the ends lie within. Counters are left at zero: counts and arrivals here, masses
and the number of candidates by `_ends` (triton_ends.py).
"""
# pyright: reportOperatorIssue=false
# (What Triton's reductions return is known inside its compiler alone.)

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.define import MAX_ROWS
from kernels.gpu import counters, let_next_start, power_of_two, wait_for_inputs
from kernels.sample.triton_cuts import BINS, bin_of, is_alive, settings, top_and_scale, weight_of
from kernels.sample.triton_parts import BLOCK, key_of


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
    heat, k, p = settings(temperature_ptr, top_k_ptr, top_p_ptr, ids)
    if (heat != 0.0) & ((k > 0) | (p < 1.0)):
        row = tl.program_id(1)
        blocks = tl.num_programs(0)
        least = tl.load(min_p_ptr).to(tl.float32)
        top, scale = top_and_scale(peak_ptr, row, heat, k, p, ids, blocks, BLOCKS, BINS)
        col = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        place = logits_ptr + row.to(tl.int64) * stride + col
        x = tl.load(place, mask=col < ids, other=float("-inf")).to(tl.float32)
        score = x / heat
        alive = is_alive(score, top, least, col < ids)
        bins = tl.where(alive, bin_of(score, top, scale, BINS), BINS - 1)
        b = tl.arange(0, BINS)
        count_ptr += row * BINS
        row_ptr += row * 2
        mass_ptr += row * 4
        found = tl.histogram(bins, BINS)
        tl.atomic_add(count_ptr + b, found, mask=(found > 0) & (b < BINS - 1), sem="relaxed")
        if p < 1.0:
            mass = tl.sum(tl.where(alive, weight_of(score, top), 0), axis=0)
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
    heat, k, p = settings(temperature_ptr, top_k_ptr, top_p_ptr, ids)
    if (heat != 0.0) & ((k > 0) | (p < 1.0)):
        row = tl.program_id(1)
        blocks = tl.num_programs(0)
        least = tl.load(min_p_ptr).to(tl.float32)
        top, scale = top_and_scale(peak_ptr, row, heat, k, p, ids, blocks, BLOCKS, BINS)
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
        alive = is_alive(score, top, least, col < ids)
        bins = bin_of(score, top, scale, BINS)
        inside = alive & (((bins >= first) & (bins <= until)) | (bins == end))
        if p < 1.0:
            weight = tl.where(alive, weight_of(score, top), 0)
            mass = tl.sum(tl.where(bins < first, weight, 0), axis=0)
            tl.atomic_add(mass_ptr + 1, mass, sem="relaxed")
            mass = tl.sum(tl.where((bins > until) & (bins < end), weight, 0), axis=0)
            tl.atomic_add(mass_ptr + 2, mass, sem="relaxed")
        found = tl.sum(inside.to(tl.int32), axis=0)
        if found > 0:
            at = tl.atomic_add(row_ptr + 1, found, sem="relaxed")
            at += tl.cumsum(inside.to(tl.int32), axis=0) - 1
            tl.store(key_ptr + at, key_of(score), mask=inside)
            tl.store(id_ptr + at, col, mask=inside)


def launch_bins(
    logits: Tensor,
    scalars: tuple[Tensor, Tensor, Tensor, Tensor],
    peak: Tensor,
    ids: int,
    options: dict[str, Any],
) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor, Tensor]]:
    """Writes peak [rows, blocks]; returns the bounds, and counters, masses, keys and ids found.

    Scalars: temperature, top_k, top_p, min_p.
    """
    rows, blocks = peak.shape
    grid, stride = (blocks, rows), logits.stride(0)
    most = power_of_two(max(rows, MAX_ROWS))
    zeros = counters(logits.device, most * (BINS + 10))
    count, row, mass = zeros.split([most * BINS, most * 2, most * 8])
    mass = mass.view(torch.int64)
    key, token_of_key = (peak.new_empty(rows, ids, dtype=torch.int32) for _ in range(2))
    bound = peak.new_empty(rows, 4, dtype=torch.int32)
    sizes = {"BLOCK": BLOCK, **options}
    wide = {"BLOCKS": power_of_two(blocks), "BINS": BINS, **sizes}
    _peak[grid](logits, scalars[0], peak, ids, stride, **sizes)
    _bins[grid](logits, *scalars, peak, bound, count, row, mass, ids, stride, **wide)
    found = (row, mass, key, token_of_key)
    _gather[grid](logits, *scalars, peak, bound, *found, ids, stride, **wide)
    return bound, found
