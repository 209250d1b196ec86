"""Int4 weights times many tokens: restored a block of rows at a time, multiplied by the library.

In bf16 the result is that of the restored matrix. In 8 bits each token and each output row of the
restored matrix has a scale of its own (kernels/quantise_rows), so the weights are rounded twice:
against their 4 bits that is little, since a row's largest weight is 4 to 5 deviations and a step
then 0.03 of one, beside 0.3 to 0.4 of the 4-bit codes. What tokens lose is what it costs.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int16
from torch import Tensor

from kernels.int4_matmul.layout import GROUP, ROWS
from kernels.registry import Ops

aten = torch.ops.aten
CODES = {"int8": torch.int8, "fp8": torch.float8_e4m3fn}
ACTIVATIONS = ("bf16", *CODES)
SCRATCH = 2**29
UNIT = 4  # row tiles: 256 output rows, as wide as a library's own tiles


@dataclass(frozen=True)
class Many:
    """What tokens are multiplied as, and the bytes that restored weights may take at once."""

    activations: str = "bf16"
    scratch: int = SCRATCH


def block_tiles(row_tiles: int, row_bytes: int, scratch: int) -> int:
    """Row tiles of a block: as few blocks as `scratch` allows, equally high, of whole units.

    `row_bytes`: what an output row takes. At least one unit, whatever it takes.
    """
    most = max(UNIT, scratch // (row_bytes * ROWS) // UNIT * UNIT)
    blocks = -(-row_tiles // most)
    return -(-row_tiles // (blocks * UNIT)) * UNIT


def multiply(
    x: Float[Tensor, "tokens in"],
    tiles: Int16[Tensor, "row_tiles groups lines words"],
    n: int,
    many: Many,
    ops: Ops,
) -> Float[Tensor, "tokens {n}"]:
    """x W^T for n output rows. Blocks write into the result; one buffer holds their weights."""
    row_tiles, k = tiles.shape[0], tiles.shape[1] * GROUP
    codes = CODES.get(many.activations)
    # with codes: theirs, and at most fp32 and int32 results
    row_bytes = k * x.element_size() if codes is None else k * (x.element_size() + 1) + 8 * len(x)
    step = block_tiles(row_tiles, row_bytes, many.scratch)
    weights = x.new_empty(min(step, row_tiles) * ROWS, k)
    product = _rounded(x, codes, ops) if codes else None
    y = x.new_empty(len(x), n)
    for start in range(0, row_tiles, step):
        part = tiles[start : start + step]
        weight = weights[: len(part) * ROWS]  # whole tiles: rows past n are zeros
        ops.int4_restore(part, weight)
        out = y[:, start * ROWS : (start + step) * ROWS]
        if product is not None:
            out.copy_(product(weight)[:, : out.shape[1]])
        else:
            torch.mm(x, weight[: out.shape[1]].t(), out=out)
    return y


def _rounded(x: Tensor, dtype: torch.dtype, ops: Ops) -> Callable[[Tensor], Tensor]:
    """The product of x's codes with those of a weight's rows, scaled; sums are int32 or fp32."""
    x_codes, x_scale = ops.quantise_rows(x, dtype)

    def product(weight: Tensor) -> Tensor:
        codes, scale = ops.quantise_rows(weight, dtype)
        if dtype == torch.int8:
            y = aten._int_mm(x_codes, codes.t()).float()
        elif x.is_cuda:
            scales = x_scale[:, None], scale[None]
            return aten._scaled_mm(x_codes, codes.t(), *scales, out_dtype=x.dtype)
        else:  # the same numbers, in fp32
            y = x_codes.float() @ codes.float().t()
        return y.mul_(x_scale[:, None]).mul_(scale)

    return product
