"""The definition: weights restored in fp32, one row a call."""

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.define import Support, variant
from kernels.int4_matmul.layout import GROUP, dequantise
from kernels.precision import wide

SHAPES = {"k": GROUP}


def fake(x: Tensor, tiles: Tensor, splits: list[int]) -> Tensor:
    return x.new_empty(x.shape[0], sum(splits))


@variant("int4_matmul", "reference", fake, support=Support(multiples=SHAPES))
def int4_matmul(x: Tensor, tiles: Tensor, splits: list[int]) -> Tensor:
    """x [rows, k], tiles (layout.py) of sum(splits) output rows -> [rows, n] in x's dtype."""
    xf = wide(x)
    weight = dequantise(tiles, sum(splits), xf.dtype)
    return torch.cat([F.linear(row, weight) for row in xf.split(1)]).to(x.dtype)
