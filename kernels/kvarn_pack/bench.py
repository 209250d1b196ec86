"""One layer's tiles: a step that packs none, one that packs one, a prompt's chunk."""

from typing import Any

import torch
from torch import Tensor

from kernels.kvarn import TILE, first_seen, pack_keys, pack_values, scale_rows, tile_bytes
from kernels.kvarn import value_bits as bits_of
from tr.bench import Bench, Draw, Sizes, Widths

TILES = 64


def cases(c: Widths) -> dict[str, Sizes]:
    sizes = {"kv_heads": c.kv_heads, "d": c.d_head, "value_bits": 2}
    return {
        "no tile": {**sizes, "pos": 300, "tokens": 8},
        "one tile": {**sizes, "pos": 400, "tokens": 8},
        "4096 tokens": {**sizes, "pos": 272, "tokens": 4096},
    }


def packed(draw: Draw, kv_heads: int, tiles: int, d: int, value_bits: int) -> list[Tensor]:
    """Codes and scales of drawn rows, the same for every tile; on the meta device, shapes alone."""
    k_numbers, v_numbers = scale_rows(d)
    if draw.device.type == "meta":
        codes = ((TILE, d // 4), (d * value_bits // 8, TILE // 2))
        made = [torch.empty(kv_heads, *s, dtype=torch.int16, device="meta") for s in codes]
        made += [draw(kv_heads, n, dtype=torch.float16) for n in (k_numbers, v_numbers)]
    else:
        zero = torch.zeros(kv_heads, d, device=draw.device)
        k = pack_keys(draw(kv_heads, TILE, d, dtype=torch.float32), zero)
        v = pack_values(draw(kv_heads, TILE, d, dtype=torch.float32), zero, value_bits)
        made = [k[0], v[0], k[1], v[1]]
    return [x[:, None].expand(-1, tiles, *x.shape[1:]).contiguous() for x in made]


def inputs(
    draw: Draw, rows: int, kv_heads: int, d: int, value_bits: int, pos: int, tokens: int
) -> list[Any]:
    """`rows` does not matter: `tokens` are what the call is for."""
    half = draw(2, kv_heads, TILE, d, dtype=torch.float16)
    n = -(-(tokens + TILE) // TILE) * TILE
    source = draw(2, kv_heads, n, d, dtype=torch.float16)
    tiles = max(TILES, (pos + tokens) // TILE + 1)
    parts = packed(draw, kv_heads, tiles, d, value_bits)
    return [
        draw.scalar(pos),
        tokens,
        half,
        source,
        0,
        *parts,
        draw(2, kv_heads, d, dtype=torch.float32),
    ]


def nbytes(
    pos: Tensor,
    rows: int,
    sink: Tensor,
    source: Tensor,
    start: int,
    k_codes: Tensor,
    v_codes: Tensor,
    k_scales: Tensor,
    v_scales: Tensor,
    means: Tensor,
) -> int:
    """Rows of packed tiles in, tiles out, the sink for their means; a position at least."""
    kv_heads, d = sink.shape[1], sink.shape[3]
    tiles = len(first_seen(int(pos), rows))
    each = 2 * TILE * d * source.element_size() + tile_bytes(d, bits_of(v_codes, d))
    return pos.nbytes + (tiles > 0) * (sink.nbytes + means.nbytes) + tiles * kv_heads * each


BENCH = (Bench("kvarn_pack", cases, inputs, nbytes, lambda out: ()),)
