"""A prompt's chunk over a cache whose rows stand alone: stored as numbers, or as codes with scales.

Numbers of the model's own dtype are read where they are. Others are restored a span at a time, so
what that takes does not grow with the context; spans start on absolute positions, so a chunk's
place changes no bit of a row.
"""

import torch
from torch import Tensor

from kernels.registry import Ops

SPAN = 32_768  # keys restored at a time: in 16 bits 134 MB for the 27B's 4 heads of 256


def attend(stored: tuple[Tensor, ...], q: Tensor, gate: Tensor, pos: int, ops: Ops) -> Tensor:
    """q, gate [tokens, heads, d] at pos .. over `stored`, all rows of a cache up to their last one:
    keys and values, and their scales where there are any; [tokens, heads d].
    """
    k, v, *scales = stored
    if k.dtype == q.dtype:
        return ops.attention_prefill(q, gate, k, v, pos, 0)
    end = k.shape[1]
    numbers = [q.new_empty(k.shape[0], min(end, SPAN), q.shape[2]) for _ in range(2)]
    out = mass = None
    if end > SPAN:
        out = torch.empty_like(q, dtype=torch.float32)
        mass = out.new_empty(*q.shape[:2], 2)
    y = q
    for start in range(0, end, SPAN):
        stop = min(start + SPAN, end)
        span = [x[:, : stop - start] for x in numbers]
        for i, codes in enumerate((k, v)):
            scale = scales[i][:, start:stop] if scales else None
            ops.kv_restore(codes[:, start:stop], scale, span[i])
        begins, ends = start == 0, stop == end
        y = ops.attention_prefill(q, gate, *span, pos, start, out, mass, begins, ends)
    return y
