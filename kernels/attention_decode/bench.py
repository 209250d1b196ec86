"""One attention layer over either cache format, at contexts that the model reaches."""

from typing import Any

import torch
from torch import Tensor

from kernels.define import MAX_ROWS
from tr.bench import Bench, Draw, Sizes, Widths

CONTEXTS = (0, 4096, 32768, 200_000)
BLOCK = 512  # variants read caches by whole blocks


def cases(c: Widths) -> dict[str, Sizes]:
    sizes = {"heads": c.heads, "kv_heads": c.kv_heads, "d": c.d_head}
    formats = {"bf16": torch.bfloat16, "fp8": torch.float8_e4m3fn}
    return {
        f"{name} {pos} tokens": {**sizes, "cache": cache, "pos": pos}
        for name, cache in formats.items()
        for pos in CONTEXTS
        if pos + MAX_ROWS <= c.max_positions
    }


def inputs(
    draw: Draw,
    rows: int,
    heads: int,
    kv_heads: int,
    d: int,
    pos: int,
    cache: torch.dtype | None = None,
    capacity: int | None = None,
) -> list[Any]:
    """cache None: in the dtype of the rows; capacity None: whole blocks for pos + 16 rows."""
    capacity = capacity or -(-(pos + MAX_ROWS) // BLOCK) * BLOCK
    caches = (draw(kv_heads, capacity, d, dtype=cache) for _ in range(2))
    return [draw(rows, heads, d), draw(rows, heads * d), *caches, draw.scalar(pos)]


def nbytes(q: Tensor, gate: Tensor, k_cache: Tensor, v_cache: Tensor, pos: Tensor) -> int:
    """The live keys and values, queries and gates in, rows out."""
    kv_heads, _, d = k_cache.shape
    live = 2 * kv_heads * d * (int(pos) + q.shape[0]) * k_cache.element_size()
    return live + q.nbytes + 2 * gate.nbytes


BENCH = (Bench("attention_decode", cases, inputs, nbytes),)
