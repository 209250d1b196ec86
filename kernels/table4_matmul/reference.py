"""The definition: weights restored in fp32, one row a call."""

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.define import Support, variant
from kernels.precision import wide
from kernels.table4_matmul.layout import UNIT, dequantise

SHAPES = {"k": UNIT}


def fake(x: Tensor, tiles: Tensor, exponent: Tensor, splits: list[int]) -> Tensor:
    return x.new_empty(x.shape[0], sum(splits))


@variant("table4_matmul", "reference", fake, support=Support(multiples=SHAPES))
def table4_matmul(x: Tensor, tiles: Tensor, exponent: Tensor, splits: list[int]) -> Tensor:
    """x [rows, k], tiles and exponent [n] int8 (layout.py) -> [rows, n] in x's dtype."""
    xf = wide(x)
    weight = dequantise(tiles, exponent, xf.dtype)
    return torch.cat([F.linear(row, weight) for row in xf.split(1)]).to(x.dtype)
