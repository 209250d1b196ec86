"""4-bit weights times many tokens: restored a block of rows at a time, multiplied by the library.

In bf16 the result is that of the restored matrix. In 8 bits each token and each output row of the
restored matrix has a scale of its own (kernels/quantise_rows), so the weights are rounded twice:
against their 4 bits that is little, since a row's largest weight is 4 to 5 deviations and a step
then 0.03 of one, beside 0.3 to 0.4 of the 4-bit codes. What tokens lose is what it costs.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int16
from torch import Tensor

from kernels.define import MAX_ROWS
from kernels.int4_matmul.layout import GROUP, ROWS
from kernels.registry import Ops

aten = torch.ops.aten
CODES = {"int8": torch.int8, "fp8": torch.float8_e4m3fn}
ACTIVATIONS = ("bf16", *CODES)
SCRATCH = 2**29
UNIT = 4  # row tiles: 256 output rows, as wide as a library's own tiles
SHORT = 4 * MAX_ROWS  # tokens up to which weights are cheaper read as codes, once per 16 of them
#: (first row tile, past the last, weight [64 tiles, k] to write)
Restore = Callable[[int, int, Tensor], None]


@dataclass(frozen=True)
class Many:
    """What tokens are multiplied as, and the bytes that restored weights may take at once."""

    activations: str = "bf16"
    scratch: int = SCRATCH

    def row_bytes(self, k: int, tokens: int, element: int = 2) -> int:
        """Of an output row of k weights, restored in numbers of `element` bytes.

        In 8 bits its codes too, and at most an fp32 and an int32 result of each token.
        """
        return k * element + (k + 8 * tokens if self.activations in CODES else 0)

    def held(self, n: int, k: int, tokens: int) -> int:
        """Bytes that `multiply` takes at most, x and the result aside."""
        row, tiles = self.row_bytes(k, tokens), -(-n // ROWS)
        x_codes = tokens * k if self.activations in CODES else 0
        return min(tiles, block_tiles(tiles, row, self.scratch)) * ROWS * row + x_codes


def block_tiles(row_tiles: int, row_bytes: int, scratch: int) -> int:
    """Row tiles of a block: as few blocks as `scratch` allows, equally high, of whole units.

    `row_bytes`: what an output row takes. At least one unit, whatever it takes.
    """
    most = max(UNIT, scratch // (row_bytes * ROWS) // UNIT * UNIT)
    blocks = -(-row_tiles // most)
    return -(-row_tiles // (blocks * UNIT)) * UNIT


class Tiled(Protocol):
    """A format in tiles of int4's shape."""

    @property
    def tiles(self) -> Tensor: ...

    @property
    def many(self) -> Many: ...

    @property
    def shape(self) -> tuple[int, int]: ...

    def step(self, x: Tensor, ops: Ops) -> Tensor: ...

    def rows(self, start: int, stop: int, dtype: torch.dtype) -> Tensor:
        """The dense rows of tiles start..stop."""
        ...

    def restore(self, ops: Ops) -> Restore: ...


def sequence(
    matrix: Tiled, x: Float[Tensor, "... in"], ops: Ops | None, block: int
) -> Float[Tensor, "... out"]:
    """Many tokens, any leading axes, by restored weights in x's dtype, `block` of them at a time.

    Without `ops` differentiable in x. With them the tokens are a prompt's: more than SHORT go by
    what `matrix.many` says, fewer in x's own dtype, on a GPU as the rows of steps. Their count
    alone decides: equal chunks of a prompt take equal paths.
    """
    (n, k), many = matrix.shape, matrix.many
    short = x.numel() <= SHORT * k
    if ops is not None and (x.is_cuda or many.activations != "bf16" and not short):
        flat = x.reshape(-1, k).contiguous()
        if short:
            parts = [matrix.step(rows, ops) for rows in flat.split(MAX_ROWS)]
            y = parts[0] if len(parts) == 1 else torch.cat(parts)
        else:
            y = multiply(flat, matrix.tiles, n, many, ops, matrix.restore(ops))
        return y.unflatten(0, x.shape[:-1])
    step, tiles = max(1, block // (k * ROWS)), len(matrix.tiles)
    starts = range(0, tiles, step)
    parts = [F.linear(x, matrix.rows(i, min(i + step, tiles), x.dtype)) for i in starts]
    return torch.cat(parts, -1)


def multiply(
    x: Float[Tensor, "tokens in"],
    tiles: Int16[Tensor, "row_tiles groups lines words"],
    n: int,
    many: Many,
    ops: Ops,
    restore: Restore,
) -> Float[Tensor, "tokens {n}"]:
    """x W^T for n output rows. Blocks write into the result; one buffer holds their weights."""
    row_tiles, k = tiles.shape[0], tiles.shape[1] * GROUP
    codes = CODES.get(many.activations)
    step = block_tiles(row_tiles, many.row_bytes(k, len(x), x.element_size()), many.scratch)
    weights = x.new_empty(min(step, row_tiles) * ROWS, k)
    product = _rounded(x, codes, ops) if codes else None
    y = x.new_empty(len(x), n)
    for start in range(0, row_tiles, step):
        part = tiles[start : start + step]
        weight = weights[: len(part) * ROWS]  # whole tiles: rows past n are zeros
        restore(start, start + len(part), weight)
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
