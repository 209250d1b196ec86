"""A tile per program, as in int4_restore: 4352 bytes in, 64 rows of 128 weights out."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.define import variant
from kernels.gpu import SUPPORT, check, dependent_launch, let_next_start, wait_for_inputs
from kernels.int4_matmul.layout import LINES, ROWS, TILE, WORDS
from kernels.rounding import rounded
from kernels.table4_matmul.layout import BYTES, UNIT
from kernels.table4_matmul.triton import weights
from kernels.table4_restore.reference import fake

_UNIT = tl.constexpr(UNIT)
_BYTES = tl.constexpr(BYTES)
_ROWS = tl.constexpr(ROWS)
_TILE = tl.constexpr(TILE)
_WORDS = tl.constexpr(WORDS)


@triton.jit
def _table4_restore(
    tiles_ptr,  # int16
    bytes_ptr,  # the same memory as int32
    exponent_ptr,  # [n] int8
    weight_ptr,  # [n, 128 units]
    n,
    units,
    PDL: tl.constexpr,
):
    let_next_start(PDL)
    wait_for_inputs(PDL)  # what reads the weights that stood here before
    unit, tile = tl.program_id(0), tl.program_id(1)
    row, word = tl.arange(0, _ROWS), tl.arange(0, _WORDS)
    start = (tile.to(tl.int64) * units + unit) * _TILE
    words = tl.load(tiles_ptr + start + row[:, None] * _WORDS + word[None, :])
    bytes = tl.load(bytes_ptr + start // 2 + _ROWS * _WORDS // 2 + row)
    out = tile * _ROWS + row
    power = tl.load(exponent_ptr + out, mask=out < n, other=0).to(tl.int32)
    power = ((power + 127) << 23).to(tl.float32, bitcast=True)[:, None]
    at = out.to(tl.int64)[:, None] * (units * _UNIT) + unit * _UNIT + word[None, :]
    dtype = weight_ptr.dtype.element_ty
    for i in tl.static_range(_BYTES):
        y = rounded(weights(words, bytes, i) * power, dtype)
        tl.store(weight_ptr + at + i * _WORDS, y.to(dtype), mask=out[:, None] < n)


@variant("table4_restore", "triton", fake, mutates=("weight",), support=SUPPORT)
def table4_restore(tiles: Tensor, exponent: Tensor, weight: Tensor) -> None:
    """As the reference to the bit, for contiguous tensors and weights of at most 32 bits."""
    check("table4_restore", 1, tiles=tiles, exponent=exponent, weight=weight)
    n, k = weight.shape
    fits = tiles.shape == (-(-n // ROWS), k // UNIT, LINES, WORDS) and exponent.shape == (n,)
    if k % UNIT or not fits:
        raise ValueError(
            f"table4_restore: tiles of shape {tuple(tiles.shape)} and exponents of"
            f" {tuple(exponent.shape)} do not hold weights [{n}, {k}]"
        )
    if weight.dtype == torch.float64:
        raise ValueError("table4_restore: triton restores up to fp32, got float64; use reference")
    overlap = dependent_launch(weight.device)
    _table4_restore[(k // UNIT, tiles.shape[0])](
        tiles,
        tiles.view(torch.int32),
        exponent,
        weight,
        n,
        k // UNIT,
        PDL=overlap,
        num_warps=4,
        launch_pdl=overlap,
    )
