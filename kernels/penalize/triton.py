"""The text's counts are gathered in integers, then every logit is read and written once.

`_count` turns the history into two tables [ids]: whether a token was seen, and how often it was
written; the bias becomes a third. `_penalize` adds the drafts before its row to them: at most 15
comparisons a logit, in place of counts per row.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.define import variant
from kernels.gpu import SUPPORT, check, dependent_launch, let_next_start, wait_for_inputs
from kernels.penalize.reference import fake

BLOCK = 1024


@triton.jit
def _count(
    history_ptr,
    position_ptr,
    start_ptr,
    bias_ids_ptr,
    bias_ptr,
    seen_ptr,
    written_ptr,
    shift_ptr,
    biases,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    let_next_start(PDL)
    wait_for_inputs(PDL)
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if tl.program_id(0) * BLOCK < biases:
        token = tl.load(bias_ids_ptr + place, mask=place < biases, other=-1)
        value = tl.load(bias_ptr + place, mask=place < biases, other=0.0)
        tl.store(shift_ptr + token, value, mask=token >= 0)
    position = tl.load(position_ptr)
    if tl.program_id(0) * BLOCK < position:
        stands = place < position
        token = tl.load(history_ptr + place, mask=stands, other=0)
        tl.store(seen_ptr + token, tl.full([BLOCK], 1, tl.int32), mask=stands)
        written = stands & (place >= tl.load(start_ptr))
        tl.atomic_add(written_ptr + token, 1, mask=written, sem="relaxed")


@triton.jit
def _penalize(
    logits_ptr,
    tokens_ptr,
    seen_ptr,
    written_ptr,
    shift_ptr,
    presence_ptr,
    frequency_ptr,
    repetition_ptr,
    out_ptr,
    ids,
    stride,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    let_next_start(PDL)
    wait_for_inputs(PDL)
    row = tl.program_id(1).to(tl.int64)
    token = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    real = token < ids
    written = tl.load(written_ptr + token, mask=real, other=0)
    drafted = tl.zeros([BLOCK], tl.int32)
    for i in range(1, tl.program_id(1) + 1):
        drafted += (tl.load(tokens_ptr + i) == token).to(tl.int32)
    written += drafted
    seen = (tl.load(seen_ptr + token, mask=real, other=0) + drafted) > 0
    x = tl.load(logits_ptr + row * stride + token, mask=real, other=0.0).to(tl.float32)
    repetition = tl.load(repetition_ptr).to(tl.float32)
    repeated = tl.where(
        x > 0.0, tl.div_rn(x, tl.zeros([BLOCK], tl.float32) + repetition), x * repetition
    )
    x = tl.where(seen, repeated, x)
    x = x - tl.load(frequency_ptr).to(tl.float32) * written.to(tl.float32)
    x = tl.where(written > 0, x - tl.load(presence_ptr).to(tl.float32), x)
    x = x + tl.load(shift_ptr + token, mask=real, other=0.0)
    tl.store(out_ptr + row * ids + token, x, mask=real)


@variant("penalize", "triton", fake, support=SUPPORT)
def penalize(
    logits: Tensor,
    position: Tensor,
    tokens: Tensor,
    history: Tensor,
    start: Tensor,
    presence: Tensor,
    frequency: Tensor,
    repetition: Tensor,
    bias_ids: Tensor,
    bias: Tensor,
    ids: int,
) -> Tensor:
    """As the reference, for fp32 scalars and bias, without asking the host for anything."""
    rows, vocab = logits.shape
    if logits.stride(1) != 1:
        raise ValueError(f"penalize: rows of logits must be contiguous, got {logits.stride()}")
    check("penalize", rows, tokens=tokens, history=history, bias_ids=bias_ids, bias=bias)
    if not 0 < ids <= vocab:
        raise ValueError(f"penalize: ids must be 1 .. {vocab}, the width of logits, got {ids}")
    if len(tokens) != rows:
        raise ValueError(f"penalize: expected a token for each of {rows} rows, got {len(tokens)}")
    counts = torch.zeros(2, ids, dtype=torch.int32, device=logits.device)
    shift = torch.zeros(ids, device=logits.device)
    out = torch.empty(rows, ids, device=logits.device)
    overlap = dependent_launch(logits.device)
    options = {"BLOCK": BLOCK, "PDL": overlap, "enable_fp_fusion": False, "launch_pdl": overlap}
    longest = max(len(history), len(bias_ids))
    _count[(triton.cdiv(longest, BLOCK),)](
        history,
        position,
        start,
        bias_ids,
        bias,
        counts[0],
        counts[1],
        shift,
        len(bias_ids),
        **options,
    )
    _penalize[(triton.cdiv(ids, BLOCK), rows)](
        logits,
        tokens,
        counts[0],
        counts[1],
        shift,
        presence,
        frequency,
        repetition,
        out,
        ids,
        logits.stride(0),
        **options,
    )
    return out
