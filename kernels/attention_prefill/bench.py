"""The last chunk of a prompt in one layer, over keys as a bf16 cache holds them."""

from typing import Any

from torch import Tensor

from tr.bench import Bench, Draw, Sizes, Widths

CHUNKS = ((4096, 0), (2048, 30_720))  # tokens, and those ahead of them


def cases(c: Widths) -> dict[str, Sizes]:
    sizes = {"heads": c.heads, "kv_heads": c.kv_heads, "d": c.d_head}
    return {
        f"{tokens} tokens at {pos}": {**sizes, "tokens": min(tokens, c.max_positions), "pos": pos}
        for tokens, pos in CHUNKS
        if pos < c.max_positions
    }


def inputs(
    draw: Draw, rows: int, heads: int, kv_heads: int, d: int, pos: int, tokens: int = 0
) -> list[Any]:
    """`tokens` in place of `rows`, unless it is 0."""
    rows = tokens or rows
    keys = (draw(kv_heads, pos + rows, d) for _ in range(2))
    return [draw(rows, heads, d), draw(rows, heads, d), *keys, pos, 0]


def nbytes(q: Tensor, gate: Tensor, k: Tensor, v: Tensor, pos: int, start: int) -> int:
    """Keys and values, queries and gates in, rows out."""
    return k.nbytes + v.nbytes + q.nbytes + 2 * gate.nbytes


BENCH = (Bench("attention_prefill", cases, inputs, nbytes),)
