"""Always 16 rows, weights restored in fp32: one library call whatever the caller's row count."""

import torch.nn.functional as F
from torch import Tensor

from kernels.define import Support, variant
from kernels.int4_matmul.layout import dequantise
from kernels.int4_matmul.reference import SHAPES, fake
from kernels.matmul.tile import tile
from kernels.precision import wide


@variant("int4_matmul", "tile", fake, support=Support(multiples=SHAPES))
def int4_matmul(x: Tensor, tiles: Tensor, splits: list[int]) -> Tensor:
    """x [rows <= 16, k], tiles (layout.py) -> [rows, sum(splits)] in x's dtype."""
    xf = tile(wide(x))
    y = F.linear(xf, dequantise(tiles, sum(splits), xf.dtype))
    return y[: x.shape[0]].to(x.dtype, copy=True)
