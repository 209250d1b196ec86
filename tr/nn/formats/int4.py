"""Group-wise asymmetric int4 weights: codes 0..15, bfloat16 scale and minimum per 128 inputs."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import BFloat16, Float, Int16, UInt8
from torch import Tensor

from kernels.int4_matmul import layout
from kernels.int4_matmul.layout import GROUP, ROWS
from kernels.registry import Ops
from tr.tree import static, tree

BLOCK = 2**26  # weights that are restored at once: 128 MiB of bfloat16


@tree
class Int4:
    """Stacked matrices of `splits` rows each, in the kernels' tiles: weight = codes * scale +
    minimum. Scales and minimums lie inside the tiles, so that one copy brings all of a tile.
    """

    tiles: Int16[Tensor, "row_tiles groups lines words"]
    splits: tuple[int, ...] = static()

    @property
    def shape(self) -> tuple[int, int]:
        """Output and input width."""
        return sum(self.splits), self.tiles.shape[1] * GROUP

    @property
    def scale(self) -> BFloat16[Tensor, "out groups"]:
        return layout.scale_of(self.tiles)[: self.shape[0]]

    @property
    def minimum(self) -> BFloat16[Tensor, "out groups"]:
        return layout.minimum_of(self.tiles)[: self.shape[0]]

    def weight(self, dtype: torch.dtype) -> Float[Tensor, "out in"]:
        """The dense matrix: codes * scale + minimum in fp32, rounded once to `dtype`."""
        return layout.dequantise(self.tiles, self.shape[0], dtype)

    def sequence(self, x: Float[Tensor, "... in"]) -> Float[Tensor, "... out"]:
        """Many tokens, any leading axes, differentiable in x: the weights are restored in x's
        dtype, a block of rows at a time, and multiplied by the library.
        """
        n, k = self.shape
        step = max(1, BLOCK // (k * ROWS))
        parts = []
        for i in range(0, self.tiles.shape[0], step):
            rows = min(step * ROWS, n - i * ROWS)
            parts.append(F.linear(x, layout.dequantise(self.tiles[i : i + step], rows, x.dtype)))
        return torch.cat(parts, -1)

    def step(self, x: Float[Tensor, "rows in"], ops: Ops) -> Float[Tensor, "rows out"]:
        """A few rows through the operator `int4_matmul`."""
        return ops.int4_matmul(x, self.tiles, list(self.splits))


def pack(
    codes: UInt8[Tensor, "out in"],
    scale: BFloat16[Tensor, "out groups"],
    minimum: BFloat16[Tensor, "out groups"],
    splits: Sequence[int],
) -> Int4:
    """Raises ValueError for an input width that is no multiple of 128 and for codes past 15."""
    if sum(splits) != codes.shape[0]:
        raise ValueError(f"int4: splits {list(splits)} do not add up to {codes.shape[0]} rows")
    return Int4(tiles=layout.pack(codes, scale, minimum), splits=tuple(splits))


def unpack(
    x: Int4,
) -> tuple[UInt8[Tensor, "out in"], BFloat16[Tensor, "out groups"], BFloat16[Tensor, "out groups"]]:
    """Codes, scale and minimum as `pack` took them."""
    return layout.unpack(x.tiles, x.shape[0])


def int4(splits: Sequence[int], d_in: int, generator: torch.Generator) -> Int4:
    """Random weights of standard deviation d_in ** -0.5, made as codes on the generator's device:
    nothing wider is ever held.
    """
    return Int4(tiles=layout.random(sum(splits), d_in, generator), splits=tuple(splits))
