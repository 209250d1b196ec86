"""One linear-attention layer, with one and with eight accepted rows to fold in."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.define import MAX_ROWS
from tr.bench import Bench, Draw, Sizes, Widths

EPS = 1e-6


def cases(c: Widths) -> dict[str, Sizes]:
    sizes = {"k_heads": c.k_heads, "v_heads": c.v_heads, "d_k": c.d_k, "d_v": c.d_v}
    sizes["width"] = c.conv_width
    return {f"{pending} pending": {**sizes, "pending": pending} for pending in (1, 8)}


def inputs(
    draw: Draw,
    rows: int,
    k_heads: int,
    v_heads: int,
    d_k: int,
    d_v: int,
    width: int,
    pending: int,
) -> list[Any]:
    """Records as a step leaves them: unit keys, decays in 0..1."""
    fp32 = torch.float32
    channels, inner = 2 * k_heads * d_k + v_heads * d_v, v_heads * d_v
    return [
        draw(rows, channels + inner),
        draw(rows, 2 * v_heads),
        draw(channels, width).mul_(width**-0.5),
        draw(v_heads),
        draw(v_heads),
        1 + 0.1 * draw(d_v),
        draw(v_heads, d_k, d_v, dtype=fp32),
        draw(width - 1, channels),
        draw(MAX_ROWS, channels),
        F.normalize(draw(MAX_ROWS, k_heads, d_k, dtype=fp32), dim=-1),
        draw(MAX_ROWS, v_heads, d_v, dtype=fp32),
        draw(MAX_ROWS, v_heads, dtype=fp32).sigmoid_(),
        draw.scalar(pending),
        EPS,
    ]


def nbytes(*arguments: Any) -> int:
    """Checkpoint and tail read and written, pending records read, the rows' records written."""
    qkvz, ba, conv, a_log, dt_bias, norm, h, tail, *records, pending, _ = arguments
    once: tuple[Tensor, ...] = (qkvz, ba, conv, a_log, dt_bias, norm)
    rows, count = qkvz.shape[0], int(pending)
    record = sum(t[0].nbytes for t in records)
    out = rows * h.shape[0] * h.shape[2] * qkvz.element_size()
    folded = 2 * (h.nbytes + tail.nbytes) if count else h.nbytes + tail.nbytes
    return sum(t.nbytes for t in once) + folded + (count + rows) * record + out


BENCH = (Bench("gated_delta_step", cases, inputs, nbytes),)
