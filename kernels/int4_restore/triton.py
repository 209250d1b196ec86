"""A tile per program: 4352 bytes in, 64 rows of 128 weights out."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.define import variant
from kernels.gpu import SUPPORT, check, dependent_launch, let_next_start, wait_for_inputs
from kernels.int4_matmul.layout import GROUP, LINES, ROWS, TILE, WORDS
from kernels.int4_restore.reference import fake
from kernels.rounding import rounded

_GROUP = tl.constexpr(GROUP)
_ROWS = tl.constexpr(ROWS)
_TILE = tl.constexpr(TILE)
_WORDS = tl.constexpr(WORDS)


@triton.jit
def _int4_restore(
    tiles_ptr,  # int16
    parameters_ptr,  # the same memory as int32
    weight_ptr,  # [n, 128 groups]
    n,
    groups,
    PDL: tl.constexpr,
):
    let_next_start(PDL)
    wait_for_inputs(PDL)  # what reads the weights that stood here before
    group, tile = tl.program_id(0), tl.program_id(1)
    row, word = tl.arange(0, _ROWS), tl.arange(0, _WORDS)
    start = (tile.to(tl.int64) * groups + group) * _TILE
    words = tl.load(tiles_ptr + start + row[:, None] * _WORDS + word[None, :]).to(tl.int32)
    pair = tl.load(parameters_ptr + start // 2 + _ROWS * _WORDS // 2 + row)
    scale = (pair << 16).to(tl.float32, bitcast=True)[:, None]
    minimum = (pair & -65536).to(tl.float32, bitcast=True)[:, None]
    out = tile * _ROWS + row
    at = out.to(tl.int64)[:, None] * (groups * _GROUP) + group * _GROUP + word[None, :]
    dtype = weight_ptr.dtype.element_ty
    for i in tl.static_range(_GROUP // _WORDS):
        y = ((words >> (4 * i)) & 15).to(tl.float32) * scale + minimum
        tl.store(weight_ptr + at + i * _WORDS, rounded(y, dtype).to(dtype), mask=out[:, None] < n)


@variant("int4_restore", "triton", fake, mutates=("weight",), support=SUPPORT)
def int4_restore(tiles: Tensor, weight: Tensor) -> None:
    """As the reference to the bit, for contiguous tensors and weights of at most 32 bits."""
    check("int4_restore", 1, tiles=tiles, weight=weight)
    n, k = weight.shape
    if tiles.shape != (-(-n // ROWS), k // GROUP, LINES, WORDS) or k % GROUP:
        raise ValueError(
            f"int4_restore: tiles of shape {tuple(tiles.shape)} do not hold weights [{n}, {k}]"
        )
    if weight.dtype == torch.float64:
        raise ValueError("int4_restore: triton restores up to fp32, got float64; use reference")
    overlap = dependent_launch(weight.device)
    _int4_restore[(k // GROUP, tiles.shape[0])](
        tiles,
        tiles.view(torch.int32),
        weight,
        n,
        k // GROUP,
        PDL=overlap,
        num_warps=4,
        launch_pdl=overlap,
    )
