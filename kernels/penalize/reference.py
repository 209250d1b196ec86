"""The definition: row by row, each with the counts of its own text."""

import torch
from torch import Tensor

from kernels.define import variant


def fake(
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
    dtype = torch.promote_types(logits.dtype, torch.float32)
    return logits.new_empty(logits.shape[0], ids, dtype=dtype)


@variant("penalize", "reference", fake)
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
    """logits [rows, vocab] -> fp32 [rows, ids]; padding columns are left out.

    position, start: int64 scalars; history int64 [any]; tokens int64 [rows], what each row reads,
    below 0 where it reads none. presence, frequency, repetition: scalars. bias_ids int64 [n],
    distinct, below 0 where unused; bias [n].
    """
    stands, wrote = int(position), int(start)
    prompt = history[: min(wrote, stands)].bincount(minlength=ids)
    written = history[wrote:stands].bincount(minlength=ids)
    every = torch.arange(ids, device=logits.device)
    rows, used = [], bias_ids >= 0
    for i, row in enumerate(logits):
        if i:
            written = written + (every == tokens[i])
        x = row[:ids].to(torch.promote_types(row.dtype, torch.float32))
        repeated = torch.where(x > 0, x / repetition, x * repetition)
        x = torch.where(prompt + written > 0, repeated, x)
        x = x - frequency * written
        x = torch.where(written > 0, x - presence, x)
        x[bias_ids[used]] += bias[used]
        rows.append(x)
    return torch.stack(rows)
