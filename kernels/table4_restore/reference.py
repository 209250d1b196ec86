"""The definition: the layout's own, copied."""

from torch import Tensor

from kernels.define import variant
from kernels.table4_matmul.layout import dequantise


def fake(tiles: Tensor, exponent: Tensor, weight: Tensor) -> None:
    return None


@variant("table4_restore", "reference", fake, mutates=("weight",))
def table4_restore(tiles: Tensor, exponent: Tensor, weight: Tensor) -> None:
    """Write weight [n, k] of tiles [ceil(n / 64), k / 128, 68, 32] and exponent [n], in weight's
    dtype.
    """
    weight.copy_(dequantise(tiles, exponent, weight.dtype))
