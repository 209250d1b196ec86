"""One linear-attention layer's records after a step of eight rows, and of one."""

from typing import Any

import torch

from tr.bench import Bench, Draw, Sizes, Widths


def cases(c: Widths) -> dict[str, Sizes]:
    sizes = {"k_heads": c.k_heads, "v_heads": c.v_heads, "d_k": c.d_k, "d_v": c.d_v}
    sizes["width"] = c.conv_width
    return {f"{pending} pending": {"pending": pending, **sizes} for pending in (8, 1)}


def inputs(
    draw: Draw, rows: int, pending: int, k_heads: int, v_heads: int, d_k: int, d_v: int, width: int
) -> list[Any]:
    """Room for as many records as are pending, whatever `rows`."""
    channels, fp32 = 2 * k_heads * d_k + v_heads * d_v, torch.float32
    return [
        draw(v_heads, d_k, d_v, dtype=fp32),
        draw(width - 1, channels),
        draw(pending, channels),
        draw(pending, k_heads, d_k, dtype=fp32),
        draw(pending, v_heads, d_v, dtype=fp32),
        draw(pending, v_heads, dtype=fp32).sigmoid_(),
        pending,
    ]


def nbytes(*arguments: Any) -> int:
    """State and tail read and written, records read."""
    h, tail, *records, _ = arguments
    return 2 * (h.nbytes + tail.nbytes) + sum(t.nbytes for t in records)


BENCH = (Bench("gated_delta_absorb", cases, inputs, nbytes),)
