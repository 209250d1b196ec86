"""Two launches: the best of each block of logits and of the blocks; all pair scores and a walk.

A candidate is one int64, its score's order above, its id's complement below: no two are equal, so
taking the largest again and again gives one order. The program that arrives last for a row takes
the best of what its blocks left. Pair scores of all predecessors that a row may have are computed
side by side, a program a row; the one that arrives last walks through the tables.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.define import MAX_ROWS, variant
from kernels.dflash_select.reference import fake_select, fake_top
from kernels.gpu import (
    SUPPORT,
    arrives_last,
    check,
    counters,
    dependent_launch,
    let_next_start,
    power_of_two,
    same_dtype,
    wait_for_inputs,
)
from kernels.rounding import PLAIN, rounded
from kernels.sample.triton_parts import gumbel, key_of

BLOCK = 2048  # logits of one program
LEAST = tl.constexpr(-(2**63))


@triton.jit
def _best(packed, n, N: tl.constexpr):
    """The n largest of distinct int64 keys, largest first, as [N]."""
    lane = tl.arange(0, N)
    found = tl.full([N], LEAST, tl.int64)
    for i in range(n):
        high = tl.max(packed, axis=0)
        found = tl.where(lane == i, high, found)
        packed = tl.where(packed == high, LEAST, packed)
    return found


@triton.jit
def _top(
    logits_ptr,
    part_ptr,
    score_ptr,
    token_ptr,
    arrived_ptr,
    ids,
    stride,
    top,
    BLOCK: tl.constexpr,
    PARTS: tl.constexpr,  # blocks, rounded up
    TOP: tl.constexpr,  # top, rounded up
    PDL: tl.constexpr,
):
    let_next_start(PDL)
    wait_for_inputs(PDL)
    block = tl.program_id(0)
    blocks = tl.num_programs(0)
    row = tl.program_id(1)
    logits_ptr += row.to(tl.int64) * stride
    token = block * BLOCK + tl.arange(0, BLOCK)
    score = tl.load(logits_ptr + token, mask=token < ids, other=0.0).to(tl.float32)
    key = tl.where(score == score, key_of(score), 0x7FFFFFFF)  # as sorting has it: NaN is largest
    packed = (key.to(tl.int64) << 32) | (token ^ 0x7FFFFFFF).to(tl.int64)
    packed = tl.where(token < ids, packed, LEAST)
    lane = tl.arange(0, TOP)
    part_ptr += row.to(tl.int64) * blocks * TOP
    tl.store(part_ptr + block * TOP + lane, _best(packed, top, TOP))
    if arrives_last(arrived_ptr + row, blocks):
        i = tl.arange(0, PARTS * TOP)
        left = tl.load(part_ptr + i, mask=i < blocks * TOP, other=LEAST, cache_modifier=".cg")
        found = _best(left, top, TOP)
        winner = (found & 0x7FFFFFFF).to(tl.int32) ^ 0x7FFFFFFF
        winner = tl.where(lane < top, winner, 0)
        out = row * top + lane
        tl.store(token_ptr + out, winner.to(tl.int64), mask=lane < top)
        tl.store(score_ptr + out, tl.load(logits_ptr + winner), mask=lane < top)


@triton.jit(do_not_specialize=["broken"])
def _select(
    ahead_ptr,
    predecessor_ptr,
    successor_ptr,
    best_ptr,
    score_ptr,
    anchor_ptr,
    pos_ptr,
    temperature_ptr,
    seed_ptr,
    table_ptr,  # [rows, N, N] fp32: by row, predecessor, candidate
    out_ptr,
    arrived_ptr,
    n,
    rank,
    broken,
    NOISE: tl.constexpr,
    N: tl.constexpr,
    RANK: tl.constexpr,
    PDL: tl.constexpr,
):
    let_next_start(PDL)
    wait_for_inputs(PDL)
    dtype = ahead_ptr.dtype.element_ty
    row = tl.program_id(0)
    rows = tl.num_programs(0)
    lane = tl.arange(0, N)
    r = tl.arange(0, RANK)
    there = (lane < n)[:, None] & (r < rank)[None, :]
    earlier = lane < tl.where(row > 0, n, 0)
    before = tl.load(best_ptr + (row - 1) * n + lane, mask=earlier, other=0)
    before = tl.where(row > 0, before, tl.load(anchor_ptr))
    after = tl.load(best_ptr + row * n + lane, mask=lane < n, other=0)
    a = tl.load(predecessor_ptr + before[:, None] * rank + r[None, :], mask=there, other=0.0)
    b = tl.load(successor_ptr + after[:, None] * rank + r[None, :], mask=there, other=0.0)
    h = tl.load(ahead_ptr + row * rank + r, mask=r < rank, other=0.0).to(tl.float32)
    a = rounded(a.to(tl.float32) * h[None, :], dtype)
    if PLAIN:
        pair = tl.dot(a, tl.trans(b.to(tl.float32)), input_precision="ieee")
    else:
        pair = tl.dot(a.to(dtype), tl.trans(b), input_precision="ieee")
    drawn = tl.load(score_ptr + row * n + lane, mask=lane < n, other=0.0).to(tl.float32)
    if NOISE:
        noise = gumbel(seed_ptr, tl.load(pos_ptr) + 1 + row, after.to(tl.int32))
        drawn += tl.load(temperature_ptr).to(tl.float32) * noise
    table = drawn[None, :] + rounded(pair, dtype)
    place = table_ptr + (row * N + lane[:, None]) * N + lane[None, :]
    tl.store(place, table)
    if arrives_last(arrived_ptr, rows):
        at = 0
        for i in range(rows):
            score = tl.load(
                table_ptr + (i * N + at) * N + lane, mask=lane < n, other=float("-inf"),
                cache_modifier=".cg",
            )  # fmt: skip
            high = tl.max(score, axis=0)
            missing = tl.max((score != score).to(tl.int32), axis=0)
            finite = (missing == 0) & (tl.abs(high) < float("inf"))
            at = tl.min(tl.where(score == high, lane, n - 1), axis=0)  # n - 1: nothing is equal
            token = tl.load(best_ptr + i * n + at)
            tl.store(out_ptr + i, tl.where(finite, token, broken))


def _overlap(x: Tensor) -> dict[str, Any]:
    overlap = dependent_launch(x.device)
    return {"PDL": overlap, "launch_pdl": overlap, "num_warps": 4}


@variant("dflash_top", "triton", fake_top, support=SUPPORT)
def dflash_top(logits: Tensor, ids: int, top: int) -> tuple[Tensor, Tensor]:
    """As the reference, for 1 to 16 rows."""
    rows, vocab = logits.shape
    check("dflash_top", rows, logits=logits)
    if not 0 < top <= ids <= vocab:
        raise ValueError(
            f"dflash_top: expected 0 < top <= ids <= {vocab}, got top {top} and {ids} ids"
        )
    blocks, most = triton.cdiv(ids, BLOCK), power_of_two(top)
    part = logits.new_empty(rows, blocks, most, dtype=torch.int64)
    scores = logits.new_empty(rows, top)
    best = logits.new_empty(rows, top, dtype=torch.int64)
    _top[(blocks, rows)](
        logits,
        part,
        scores,
        best,
        counters(logits.device, MAX_ROWS),
        ids,
        vocab,
        top,
        BLOCK=BLOCK,
        PARTS=power_of_two(blocks),
        TOP=most,
        **_overlap(logits),
    )
    return scores, best


@variant("dflash_select", "triton", fake_select, support=SUPPORT)
def dflash_select(
    ahead: Tensor,
    predecessor: Tensor,
    successor: Tensor,
    best: Tensor,
    scores: Tensor,
    anchor: Tensor,
    pos: Tensor,
    temperature: Tensor,
    seed: Tensor,
    noise: bool,
    broken: int,
) -> Tensor:
    """As the reference, for 1 to 16 rows."""
    rows, n = best.shape
    rank = ahead.shape[1]
    books = {"ahead": ahead, "predecessor": predecessor, "successor": successor}
    check("dflash_select", rows, best=best, scores=scores, seed=seed, **books)
    same_dtype("dflash_select", **books)
    if predecessor.shape[1] != rank or successor.shape != predecessor.shape:
        raise ValueError(
            f"dflash_select: codebooks of {tuple(predecessor.shape)} and {tuple(successor.shape)}"
            f" do not fit rows of rank {rank}"
        )
    wide = max(16, power_of_two(n))
    table = ahead.new_empty(rows, wide, wide, dtype=torch.float32)
    out = torch.empty_like(best[:, 0])
    _select[(rows,)](
        ahead,
        predecessor,
        successor,
        best,
        scores,
        anchor,
        pos,
        temperature,
        seed,
        table,
        out,
        counters(ahead.device, 1),
        n,
        rank,
        broken,
        NOISE=noise,
        N=wide,
        RANK=max(16, power_of_two(rank)),
        enable_fp_fusion=False,
        **_overlap(ahead),
    )
    return out
