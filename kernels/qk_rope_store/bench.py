"""One attention layer's heads, stored in either cache format at a position of a short cache."""

from typing import Any

import torch
from torch import Tensor

from tr.bench import Bench, Draw, Sizes, Widths

CAPACITY, POS, EPS = 512, 100, 1e-6


def cases(c: Widths) -> dict[str, Sizes]:
    sizes = {"heads": c.heads, "kv_heads": c.kv_heads, "d": c.d_head, "rotary": c.rotary_dim}
    formats = {"bf16": torch.bfloat16, "fp8": torch.float8_e4m3fn}
    return {name: {**sizes, "cache": cache} for name, cache in formats.items()}


def inputs(
    draw: Draw,
    rows: int,
    heads: int,
    kv_heads: int,
    d: int,
    rotary: int,
    cache: torch.dtype | None = None,
    capacity: int = CAPACITY,
    pos: int = POS,
) -> list[Any]:
    """cache None: in the dtype of the rows."""
    return [
        draw(rows, (2 * heads + 2 * kv_heads) * d),
        draw(d),
        draw(d),
        draw(capacity, rotary // 2),
        draw(capacity, rotary // 2),
        draw.scalar(pos),
        *(draw(kv_heads, capacity, d, dtype=cache) for _ in range(2)),
        EPS,
    ]


def nbytes(
    qkv: Tensor,
    q_norm: Tensor,
    k_norm: Tensor,
    cos: Tensor,
    sin: Tensor,
    pos: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    eps: float,
) -> int:
    """Rows in, queries and gates out, one row of each table and of both caches per row."""
    rows, width = qkv.shape
    stored = k_cache.shape[0] * k_cache.shape[2]
    per_row = (width - 2 * stored) * qkv.element_size() + 2 * stored * k_cache.element_size()
    per_row += 2 * cos.shape[1] * cos.element_size()
    return qkv.nbytes + q_norm.nbytes + k_norm.nbytes + rows * per_row


BENCH = (Bench("qk_rope_store", cases, inputs, nbytes),)
