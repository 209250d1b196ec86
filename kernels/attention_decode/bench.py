"""One attention layer over each cache format, at contexts that the model reaches."""

from typing import Any

import torch
from torch import Tensor

from kernels.codes import encode
from kernels.define import MAX_ROWS
from tr.bench import Bench, Draw, Sizes, Widths

CONTEXTS = (0, 4096, 32768, 200_000)
FORMATS = {
    "bf16": torch.bfloat16,
    "fp8": torch.float8_e4m3fn,
    "int8": torch.int8,
    "int4": torch.uint8,  # two codes each
}
BLOCK = 512  # variants read caches by whole blocks


def cases(c: Widths) -> dict[str, Sizes]:
    sizes = {"heads": c.heads, "kv_heads": c.kv_heads, "d": c.d_head}
    return {
        f"{name} {pos} tokens": {**sizes, "cache": cache, "pos": pos}
        for name, cache in FORMATS.items()
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
    q, gate = draw(rows, heads, d), draw(rows, heads * d)
    made = [filled(draw, (kv_heads, capacity, d), cache) for _ in range(2)]
    return [q, gate, *(c for c, _ in made), draw.scalar(pos), *(s for _, s in made)]


def filled(
    draw: Draw, shape: tuple[int, int, int], cache: torch.dtype | None
) -> tuple[Tensor, Tensor | None]:
    """A cache of random rows, and its scales where there are any."""
    if cache in (torch.int8, torch.uint8):
        return encode(draw(*shape), cache)
    return draw(*shape, dtype=cache), None


def nbytes(
    q: Tensor,
    gate: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    pos: Tensor,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
) -> int:
    """The live keys and values, queries and gates in, rows out."""
    held = [c for c in (k_cache, v_cache, k_scale, v_scale) if c is not None]
    live = (int(pos) + q.shape[0]) * sum(c.nbytes // k_cache.shape[1] for c in held)
    return live + q.nbytes + 2 * gate.nbytes


BENCH = (Bench("attention_decode", cases, inputs, nbytes),)
