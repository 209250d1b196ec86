"""A span of a cache's keys, as prefill restores it."""

from typing import Any

import torch
from torch import Tensor

from kernels.codes import encode
from tr.bench import Bench, Draw, Sizes, Widths

KEYS = 32768  # of a span


def cases(c: Widths) -> dict[str, Sizes]:
    sizes = {"kv_heads": c.kv_heads, "d": c.d_head, "keys": min(KEYS, c.max_positions)}
    formats = {"fp8": torch.float8_e4m3fn, "int8": torch.int8, "int4": torch.uint8}
    return {name: {**sizes, "cache": cache} for name, cache in formats.items()}


def inputs(
    draw: Draw, rows: int, kv_heads: int, d: int, keys: int, cache: torch.dtype
) -> list[Any]:
    """`keys` in place of `rows`."""
    y = draw(kv_heads, keys, d)
    if cache.is_floating_point:
        return [y.to(cache), None, y]
    return [*encode(y, cache), y]


def nbytes(codes: Tensor, scale: Tensor | None, y: Tensor) -> int:
    return codes.nbytes + (0 if scale is None else scale.nbytes) + y.nbytes


BENCH = (Bench("kv_restore", cases, inputs, nbytes, lambda out: ()),)
