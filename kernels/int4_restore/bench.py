"""A layer's matrices, each as a whole; the rows of x do not matter."""

from typing import Any

from torch import Tensor

from kernels.int4_matmul import layout
from kernels.matmul.bench import shapes
from tr.bench import Bench, Draw, Sizes, Widths


def cases(c: Widths) -> dict[str, Sizes]:
    return {name: {"n": n, "k": k} for name, (n, k) in shapes(c).items() if name != "lm_head"}


def inputs(draw: Draw, rows: int, n: int, k: int) -> list[Any]:
    return [layout.random(n, k, draw.generator), draw(n, k)]


def nbytes(tiles: Tensor, weight: Tensor) -> int:
    return tiles.nbytes + weight.nbytes


BENCH = (Bench("int4_restore", cases, inputs, nbytes, lambda out: ()),)
