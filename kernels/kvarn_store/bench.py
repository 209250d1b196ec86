"""One attention layer's heads, stored behind 300 tokens."""

from typing import Any

import torch
from torch import Tensor

from kernels.kvarn import RING, TILE
from tr.bench import Bench, Draw, Sizes, Widths

EPS, POSITIONS = 1e-6, 4096


def cases(c: Widths) -> dict[str, Sizes]:
    sizes = {"heads": c.heads, "kv_heads": c.kv_heads, "d": c.d_head, "rotary": c.rotary_dim}
    return {"": sizes}


def inputs(
    draw: Draw, rows: int, heads: int, kv_heads: int, d: int, rotary: int, pos: int = 300
) -> list[Any]:
    return [
        draw(rows, (2 * heads + 2 * kv_heads) * d),
        draw(d),
        draw(d),
        *(draw(POSITIONS, rotary // 2) for _ in range(2)),
        draw.scalar(pos),
        *(draw(2, kv_heads, n, d, dtype=torch.float16) for n in (TILE, RING)),
        EPS,
    ]


def nbytes(
    qkv: Tensor,
    q_norm: Tensor,
    k_norm: Tensor,
    cos: Tensor,
    sin: Tensor,
    pos: Tensor,
    sink: Tensor,
    ring: Tensor,
    eps: float,
) -> int:
    """Rows in, queries in fp32 and gates out, one row of each table and of keys and values."""
    rows, width = qkv.shape
    stored = 2 * sink.shape[1] * sink.shape[3]
    inner = (width - stored) // 2
    per_row = inner * (4 + qkv.element_size()) + stored * sink.element_size()
    per_row += 2 * cos.shape[1] * cos.element_size()
    return qkv.nbytes + q_norm.nbytes + k_norm.nbytes + rows * per_row


BENCH = (Bench("kvarn_store", cases, inputs, nbytes),)
