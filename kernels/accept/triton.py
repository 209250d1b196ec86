"""Every program looks at a part of the logits; the last one to arrive ends the step.

It keeps the hidden of a single row as well. Several rows, and taps, are more than one processor
should move: `_hold` does that, a second launch.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.accept.reference import MUTATES, fake
from kernels.define import MAX_ROWS, variant
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
from kernels.rms_norm.triton import unit_of
from kernels.rounding import rounded

BLOCK = 2048  # logits of a program
COLUMNS = 1024  # of hidden and taps that a program of `_hold` moves
MOST_COLUMNS = 8192  # that the last program moves at a time


@triton.jit
def _hold_hidden(
    hidden_ptr, squares_ptr, held_ptr, row, col, d, parts, UNFOLD: tl.constexpr, PARTS: tl.constexpr
):
    """Columns `col` of a row's hidden, its norm's factor applied where UNFOLD."""
    mask = col < d
    x = tl.load(hidden_ptr + row * d + col, mask=mask)
    if UNFOLD:
        unit = unit_of(squares_ptr, row, parts, PARTS)
        dtype = held_ptr.dtype.element_ty
        x = rounded(x.to(tl.float32) * unit, dtype).to(dtype)
    tl.store(held_ptr + row * d + col, x, mask=mask)


@triton.jit(do_not_specialize=["alone"])
def _accept(
    logits_ptr,
    chosen_ptr,
    drafts_ptr,
    ends_ptr,
    start_ptr,
    last_ptr,
    hidden_ptr,
    squares_ptr,
    anchor_ptr,
    pos_ptr,
    behind_ptr,
    pending_ptr,
    count_ptr,
    held_ptr,
    history_ptr,
    wrong_ptr,
    out_ptr,
    arrived_ptr,
    ids,
    stride,
    ends,
    capacity,
    d,
    parts,
    alone,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,  # of all rows
    ROWS: tl.constexpr,
    ENDS: tl.constexpr,
    COLUMNS: tl.constexpr,
    UNFOLD: tl.constexpr,
    PARTS: tl.constexpr,
    PDL: tl.constexpr,
):
    let_next_start(PDL)
    wait_for_inputs(PDL)
    rows = tl.num_programs(1)
    blocks = tl.num_programs(0)
    token = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    place = logits_ptr + tl.program_id(1).to(tl.int64) * stride + token
    x = tl.load(place, mask=token < ids, other=0.0).to(tl.float32)
    wrong = tl.max(tl.where(tl.abs(x) < float("inf"), 0, 1), axis=0)  # NaN is less than nothing
    tl.store(wrong_ptr + tl.program_id(1) * blocks + tl.program_id(0), wrong)
    if arrives_last(arrived_ptr, rows * blocks):
        block = tl.arange(0, BLOCKS)
        seen = block < rows * blocks
        wrongs = tl.load(wrong_ptr + block, mask=seen, other=0, cache_modifier=".cg")
        row = tl.arange(0, ROWS)
        live = row < rows
        drafted = live & (row > 0)
        chosen = tl.load(chosen_ptr + row, mask=live, other=0)
        before = tl.load(chosen_ptr + row - 1, mask=drafted, other=0)
        draft = tl.load(drafts_ptr + row - 1, mask=drafted, other=-1)
        anchor = tl.load(anchor_ptr)
        pos = tl.load(pos_ptr)
        behind = tl.load(behind_ptr)
        read = tl.where(row == 0, anchor, draft)
        slot = tl.arange(0, ENDS)
        end = tl.load(ends_ptr + slot, mask=slot < ends, other=-1)
        over = tl.max((read[:, None] == end[None, :]).to(tl.int32), axis=1) > 0
        over = over & (pos + row > tl.load(start_ptr))
        over = over | (pos + row >= tl.load(last_ptr))
        right = drafted & (draft == before) & (over == 0)
        kept = tl.min(tl.where(right | (row == 0), ROWS, row), axis=0)
        none = tl.max(((row == 0) & over).to(tl.int32), axis=0) + tl.max(wrongs, axis=0)
        kept = tl.where(none > 0, 0, kept)
        stood = tl.load(history_ptr + behind)
        newest = tl.sum(tl.where(row == kept - 1, chosen, 0), axis=0)
        tl.debug_barrier()  # all is read that is written now
        tl.store(history_ptr + pos + 1 + row, chosen, mask=live & (pos + 1 + row < capacity))
        kept = kept.to(tl.int64)
        tl.store(out_ptr, kept)
        tl.store(out_ptr + 1 + row, chosen, mask=live)
        tl.store(out_ptr + rows + row, draft, mask=drafted)
        tl.store(anchor_ptr, tl.where(kept > 0, newest, stood))
        tl.store(pos_ptr, behind + kept)
        tl.store(behind_ptr, behind + kept)
        tl.store(pending_ptr, kept)
        tl.store(count_ptr, kept, mask=kept > 0)
        if kept * alone > 0:
            for first in range(0, d, COLUMNS):
                col = first + tl.arange(0, COLUMNS)
                _hold_hidden(hidden_ptr, squares_ptr, held_ptr, 0, col, d, parts, UNFOLD, PARTS)


@triton.jit
def _hold(
    hidden_ptr,
    squares_ptr,
    taps_ptr,
    kept_ptr,
    held_hidden_ptr,
    held_taps_ptr,
    d,
    width,
    parts,
    COLUMNS: tl.constexpr,
    UNFOLD: tl.constexpr,
    PARTS: tl.constexpr,
    PDL: tl.constexpr,
):
    let_next_start(PDL)
    wait_for_inputs(PDL)
    if tl.load(kept_ptr) > 0:
        row = tl.program_id(1)
        col = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
        blocks = tl.cdiv(d, COLUMNS)
        if tl.program_id(0) < blocks:
            _hold_hidden(
                hidden_ptr, squares_ptr, held_hidden_ptr, row, col, d, parts, UNFOLD, PARTS
            )
        else:
            col -= blocks * COLUMNS
            at = row * width + col
            mask = col < width
            tl.store(held_taps_ptr + at, tl.load(taps_ptr + at, mask=mask), mask=mask)


@variant("accept", "triton", fake, MUTATES, SUPPORT)
def accept(
    logits: Tensor,
    ids: int,
    chosen: Tensor,
    drafts: Tensor | None,
    ends: Tensor,
    start: Tensor,
    last: Tensor,
    hidden: Tensor,
    squares: Tensor | None,
    taps: Tensor,
    anchor: Tensor,
    pos: Tensor,
    behind: Tensor,
    pending: Tensor,
    count: Tensor,
    held_hidden: Tensor,
    held_taps: Tensor,
    history: Tensor,
) -> Tensor:
    """As the reference, for 1 to 16 rows; a place past the history's end is not written."""
    rows, vocab = logits.shape
    drafted = chosen[:0] if drafts is None else drafts
    if logits.stride(1) != 1:
        raise ValueError(f"accept: rows of logits must be contiguous, got {logits.stride()}")
    if not 0 < ids <= vocab:
        raise ValueError(f"accept: ids must be 1 .. {vocab}, the width of logits, got {ids}")
    if len(drafted) != rows - 1 or len(chosen) != rows:
        raise ValueError(
            f"accept: expected {rows} chosen tokens and {rows - 1} drafts for {rows} rows of"
            f" logits, got {len(chosen)} and {len(drafted)}"
        )
    check("accept", rows, chosen=chosen, drafts=drafted, ends=ends, history=history)
    check("accept", rows, hidden=hidden, taps=taps, held_hidden=held_hidden, held_taps=held_taps)
    same_dtype("accept", hidden=hidden, held_hidden=held_hidden)
    same_dtype("accept", taps=taps, held_taps=held_taps)
    for name, new, held in (("hidden", hidden, held_hidden), ("taps", taps, held_taps)):
        if new.shape[0] != rows or held.shape[0] < rows or held.shape[1] != new.shape[1]:
            raise ValueError(
                f"accept: {name} is {tuple(new.shape)}; held_{name} must hold {rows} rows of"
                f" {new.shape[1]}, got {tuple(held.shape)}"
            )
    d, width, blocks = hidden.shape[1], taps.shape[1], triton.cdiv(ids, BLOCK)
    wrong = chosen.new_empty(rows * blocks, dtype=torch.int32)
    out = chosen.new_empty(2 * rows)
    alone = rows == 1 and not width
    shares = hidden if squares is None else squares
    overlap = dependent_launch(logits.device)
    options = {
        "UNFOLD": squares is not None,
        "PARTS": power_of_two(shares.shape[1]),
        "PDL": overlap,
        "num_warps": 4,
        "enable_fp_fusion": False,
        "launch_pdl": overlap,
    }
    _accept[(blocks, rows)](
        logits,
        chosen,
        drafted,
        ends,
        start,
        last,
        hidden,
        shares,
        anchor,
        pos,
        behind,
        pending,
        count,
        held_hidden,
        history,
        wrong,
        out,
        counters(logits.device, 1),
        ids,
        logits.stride(0),
        len(ends),
        len(history),
        d,
        shares.shape[1],
        int(alone),
        BLOCK=BLOCK,
        BLOCKS=power_of_two(blocks * MAX_ROWS),
        ROWS=MAX_ROWS,
        ENDS=power_of_two(len(ends)),
        COLUMNS=min(power_of_two(d), MOST_COLUMNS),
        **options,
    )
    if not alone:
        columns = triton.cdiv(d, COLUMNS) + triton.cdiv(width, COLUMNS)
        _hold[(columns, rows)](
            hidden,
            shares,
            taps,
            out,
            held_hidden,
            held_taps,
            d,
            width,
            shares.shape[1],
            COLUMNS=COLUMNS,
            **options,
        )
    return out
