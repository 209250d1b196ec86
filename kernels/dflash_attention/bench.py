"""One layer of the released draft over a full window, and over a short context."""

from typing import Any

import torch
from torch import Tensor

from tr.bench import Bench, Draw, Sizes, Widths

EPS = 1e-6
RELEASED = {"heads": 32, "kv_heads": 8, "d": 128, "window": 2048, "size": 4096}


def cases(c: Widths) -> dict[str, Sizes]:
    return {f"{pos} tokens": {**RELEASED, "pos": pos} for pos in (8192, 64)}


def inputs(
    draw: Draw,
    rows: int,
    heads: int,
    kv_heads: int,
    d: int,
    window: int,
    size: int,
    pos: int,
    count: int = 3,
    layers: int = 2,
    causal: bool = False,
) -> list[Any]:
    """The last of `layers`, each of `rows` new positions, of which `count` at most are real."""
    kv, tables = kv_heads * d, pos + 2 * rows
    angles = draw(tables, d // 2, dtype=torch.float32)
    return [
        draw(rows, heads * d + 2 * kv),
        draw(rows, layers * 2 * kv),
        layers - 1,
        draw(d),
        draw(d),
        angles.cos().to(draw.dtype),
        angles.sin().to(draw.dtype),
        draw.scalar(pos),
        draw.scalar(min(count, rows)),
        draw(kv_heads, size, d),
        draw(kv_heads, size, d),
        window,
        causal,
        EPS,
    ]


def nbytes(
    qkv: Tensor,
    context: Tensor,
    layer: int,
    q_norm: Tensor,
    k_norm: Tensor,
    cos: Tensor,
    sin: Tensor,
    pos: Tensor,
    count: Tensor,
    k_ring: Tensor,
    v_ring: Tensor,
    window: int,
    causal: bool,
    eps: float,
) -> int:
    """The window's keys and values, this layer's new ones in and out, the block in, rows out."""
    kv_heads, _, d = k_ring.shape
    key = 2 * kv_heads * d * qkv.element_size()
    out = qkv.nbytes - qkv.shape[0] * key
    seen = max(0, min(int(pos) - int(count), window - 1))
    return (seen + 2 * int(count)) * key + qkv.nbytes + out


BENCH = (Bench("dflash_attention", cases, inputs, nbytes),)
