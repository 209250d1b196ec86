"""One attention layer at contexts that the model reaches, values in 2 bits and in 4."""

from typing import Any

import torch
from torch import Tensor

from kernels.define import MAX_ROWS
from kernels.kvarn import RING, TILE, edge, tile_bytes
from kernels.kvarn import value_bits as bits_of
from kernels.kvarn_attention.tile import BLOCK
from kernels.kvarn_pack.bench import packed
from tr.bench import Bench, Draw, Sizes, Widths

CONTEXTS = (0, 4096, 32768, 200_000)


def cases(c: Widths) -> dict[str, Sizes]:
    sizes = {"heads": c.heads, "kv_heads": c.kv_heads, "d": c.d_head}
    return {
        f"k4v{bits} {pos} tokens": {**sizes, "value_bits": bits, "pos": pos}
        for bits in (2, 4)
        for pos in CONTEXTS
        if pos + MAX_ROWS <= c.max_positions
    }


def inputs(
    draw: Draw,
    rows: int,
    heads: int,
    kv_heads: int,
    d: int,
    value_bits: int,
    pos: int,
    capacity: int | None = None,
) -> list[Any]:
    """capacity None: whole blocks for pos + 16 rows."""
    whole = BLOCK * TILE
    capacity = capacity or -(-(pos + MAX_ROWS) // whole) * whole
    return [
        draw(rows, heads, d, dtype=torch.promote_types(draw.dtype, torch.float32)),
        draw(rows, heads * d),
        *(draw(2, kv_heads, n, d, dtype=torch.float16) for n in (TILE, RING)),
        *packed(draw, kv_heads, capacity // TILE, d, value_bits),
        draw(2, kv_heads, d, dtype=torch.float32),
        draw.scalar(pos),
    ]


def nbytes(
    q: Tensor,
    gate: Tensor,
    sink: Tensor,
    ring: Tensor,
    k_codes: Tensor,
    v_codes: Tensor,
    k_scales: Tensor,
    v_scales: Tensor,
    means: Tensor,
    pos: Tensor,
) -> int:
    """Packed tiles and exact rows that are live, queries and gates in, rows out."""
    kv_heads, d = sink.shape[1], sink.shape[3]
    live = int(pos) + q.shape[0]
    tiles = max(edge(live - 1), 1) - 1
    exact = live - tiles * TILE
    each = tile_bytes(d, bits_of(v_codes, d))
    moved = kv_heads * (tiles * each + exact * 2 * d * sink.element_size())
    return moved + q.nbytes + 2 * gate.nbytes


BENCH = (Bench("kvarn_attention", cases, inputs, nbytes),)
