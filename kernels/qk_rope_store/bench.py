"""One attention layer's heads, stored in each cache format at a position of a short cache."""

from typing import Any

import torch
from torch import Tensor

from kernels.attention_decode.bench import FORMATS, filled
from tr.bench import Bench, Draw, Sizes, Widths

CAPACITY, POS, EPS = 512, 100, 1e-6


def cases(c: Widths) -> dict[str, Sizes]:
    sizes = {"heads": c.heads, "kv_heads": c.kv_heads, "d": c.d_head, "rotary": c.rotary_dim}
    return {name: {**sizes, "cache": cache} for name, cache in FORMATS.items()}


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
    rows_in = [
        draw(rows, (2 * heads + 2 * kv_heads) * d),
        draw(d),
        draw(d),
        draw(capacity, rotary // 2),
        draw(capacity, rotary // 2),
        draw.scalar(pos),
    ]
    made = [filled(draw, (kv_heads, capacity, d), cache) for _ in range(2)]
    return [*rows_in, *(c for c, _ in made), EPS, *(s for _, s in made)]


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
    k_scale: Tensor | None,
    v_scale: Tensor | None,
) -> int:
    """Rows in, queries and gates out, one row of each table and of both caches per row."""
    rows, width = qkv.shape
    held = [c for c in (k_cache, v_cache, k_scale, v_scale) if c is not None]
    per_row = (width - 2 * k_cache.shape[0] * q_norm.shape[0]) * qkv.element_size()
    per_row += sum(c.nbytes // k_cache.shape[1] for c in held)
    per_row += 2 * cos.shape[1] * cos.element_size()
    return qkv.nbytes + q_norm.nbytes + k_norm.nbytes + rows * per_row


BENCH = (Bench("qk_rope_store", cases, inputs, nbytes),)
