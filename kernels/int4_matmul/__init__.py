"""Int4 matmul of 1..16 rows: y[r, o] = sum_k x[r, k] (scale[o, g] codes[o, k] + minimum[o, g]).

Group g = k // 128; codes are 0..15, scale and minimum bfloat16: 4.25 bits per weight. Sums are
fp32 and the result is rounded once, to x's dtype. No weight is ever rounded to x's dtype: with
fp32 group terms, sum_k (codes s + m) x = s sum_k (128 + codes) x + (m - 128 s) sum_k x holds
exactly, and 128 + code is a bfloat16 number whose mantissa is the code.

`tiles` is the layout of kernels/int4_matmul/layout.py; `splits` lists the row counts of the
matrices that it stacks (q, k, v and so on), of which only the sum matters here.
"""

import torch
from torch import Tensor

from kernels.gpu import HAS_TRITON
from kernels.int4_matmul import layout
from kernels.int4_matmul.reference import int4_matmul as reference
from kernels.int4_matmul.tile import int4_matmul as tile
from tr.bench import Bench

if HAS_TRITON:
    from kernels.int4_matmul import triton as _triton  # noqa: F401  (registers the variant)

__all__ = ["BENCH", "layout", "reference", "tile"]


def inputs(
    rows: int, n: int, k: int, dtype: torch.dtype, device: str
) -> tuple[Tensor, Tensor, list[int]]:
    g = torch.Generator(device).manual_seed(0)
    x = torch.randn(rows, k, generator=g, device=device)
    return x.to(dtype), layout.random(n, k, g), [n]


SHAPES = [  # of the 27B: in-projections, gate and up, out, down, the head and the draft's slice
    (16384, 5120),
    (14336, 5120),
    (34816, 5120),
    (5120, 6144),
    (5120, 17408),
    (248320, 5120),
    (131072, 5120),
]
BENCH = Bench(
    reference,
    reference,
    inputs,
    [{"rows": rows, "n": n, "k": k} for n, k in SHAPES for rows in (1, 8, 16)],
    lambda x, tiles, splits: x.nbytes + tiles.nbytes + x.shape[0] * sum(splits) * x.element_size(),
)
