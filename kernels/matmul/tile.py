"""Always 16 rows, whatever the caller has: one kernel, one reduction order, one row's bits."""

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.define import variant
from kernels.matmul.reference import fake

TILE = 16


def resident_dtype(dtype: torch.dtype) -> torch.dtype:
    """What dtype a CPU should hold weights in: fp32 where it has no native bf16 matmul."""
    if dtype != torch.bfloat16 or torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return dtype
    return torch.float32


def tile(x: Tensor) -> Tensor:
    """x [rows <= 16, ...] with zero rows appended to make 16."""
    if x.shape[0] > TILE:
        raise ValueError(f"tile: at most {TILE} rows, got {x.shape[0]}; split the rows first")
    if x.shape[0] == TILE:
        return x
    out = x.new_zeros(TILE, *x.shape[1:])
    out[: x.shape[0]] = x
    return out


@variant("matmul", "tile", fake)
def matmul(x: Tensor, weight: Tensor, splits: list[int]) -> Tensor:
    """x [rows <= 16, k], weight [n, k] in x's dtype or fp32 -> [rows, n] in x's dtype."""
    y = F.linear(tile(x).to(weight.dtype), weight)
    return y[: x.shape[0]].to(x.dtype, copy=True)
