"""The token of each row: the best of each block of what stays, with noise, then of the blocks.

The last block of a row to finish (an integer counter, left at zero) picks among the blocks' best.
How a row is shared out may change; among equals the lowest id wins.
"""
# pyright: reportAttributeAccessIssue=false
# (What Triton's reductions return is known inside its compiler alone.)

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.define import MAX_ROWS
from kernels.gpu import counters, let_next_start, power_of_two, wait_for_inputs
from kernels.sample.triton_cuts import is_alive
from kernels.sample.triton_parts import BLOCK, gumbel, key_of


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
            key = key_of(score)
            stay = stay & ((key > edge) | ((key == edge) & (token <= tl.load(last_ptr + row))))
            if least > 0.0:
                block = tl.arange(0, BLOCKS)
                mask = block < tl.num_programs(0)
                peak_ptr += row * tl.num_programs(0)
                peaks = tl.load(peak_ptr + block, mask=mask, other=float("-inf"))
                stay = is_alive(score, tl.max(peaks, axis=0) / heat, least, stay)
        noise = gumbel(seed_ptr, tl.load(position_ptr) + row, token)
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


def launch_best(
    logits: Tensor,
    position: Tensor,
    temperature: Tensor,
    min_p: Tensor,
    seed: Tensor,
    edge: Tensor,
    last: Tensor,
    peak: Tensor,
    ids: int,
    cuts: bool,
    options: dict[str, Any],
) -> Tensor:
    """Tokens [rows], int64; edge, last and peak [rows, blocks] are read where there are cuts."""
    rows, blocks = peak.shape
    score = peak.new_empty(rows, blocks)
    token = peak.new_empty(rows, blocks, dtype=torch.int32)
    out = peak.new_empty(rows, dtype=torch.int64)
    _best[(blocks, rows)](
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
        counters(logits.device, power_of_two(max(rows, MAX_ROWS))),
        ids,
        logits.stride(0),
        CUTS=cuts,
        BLOCK=BLOCK,
        BLOCKS=power_of_two(blocks),
        **options,
    )
    return out
