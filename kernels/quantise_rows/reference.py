"""The definition: each row by itself."""

import torch
from torch import Tensor

from kernels.define import variant
from kernels.precision import wide

LARGEST = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}  # codes reach it and go no further


def largest(dtype: torch.dtype) -> float:
    """The largest code of a dtype; ValueError for one that is no format of 8 bits."""
    if dtype not in LARGEST:
        raise ValueError(f"quantise_rows: expected int8 or float8_e4m3fn, got {dtype}")
    return LARGEST[dtype]


def fake(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x, dtype=dtype), x.new_empty(x.shape[0], dtype=torch.float32)


@variant("quantise_rows", "reference", fake)
def quantise_rows(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """x [rows, d] -> codes [rows, d] of `dtype`, scale [rows] fp32 (fp64 for fp64 input)."""
    most, xf = largest(dtype), wide(x)
    top = xf.abs().amax(-1)
    limit = torch.full_like(top, most)  # a tensor: torch divides by a number in other ways
    some = torch.where(top == 0, limit, top)
    y = xf * (limit / some)[:, None]
    if dtype == torch.int8:
        y = y.round()
    return y.clamp(-most, most).to(dtype), some / limit
