"""A layer's matrices, each as a whole; the rows of x do not matter."""

from typing import Any

from torch import Tensor

from kernels.int4_restore.bench import cases
from kernels.table4_matmul import layout
from tr.bench import Bench, Draw


def inputs(draw: Draw, rows: int, n: int, k: int) -> list[Any]:
    return [*layout.random(n, k, draw.generator), draw(n, k)]


def nbytes(tiles: Tensor, exponent: Tensor, weight: Tensor) -> int:
    return tiles.nbytes + exponent.nbytes + weight.nbytes


BENCH = (Bench("table4_restore", cases, inputs, nbytes, lambda out: ()),)
