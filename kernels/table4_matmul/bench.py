"""Every large matrix of a model at 4.25 bits a weight."""

from typing import Any

from torch import Tensor

from kernels.int4_matmul.bench import cases
from kernels.table4_matmul import layout
from tr.bench import Bench, Draw


def inputs(draw: Draw, rows: int, splits: list[int], k: int) -> list[Any]:
    return [draw(rows, k), *layout.random(sum(splits), k, draw.generator), splits]


def nbytes(x: Tensor, tiles: Tensor, exponent: Tensor, splits: list[int]) -> int:
    out = x.shape[0] * sum(splits) * x.element_size()
    return x.nbytes + tiles.nbytes + exponent.nbytes + out


BENCH = (Bench("table4_matmul", cases, inputs, nbytes),)
