"""Non-uniform 4-bit weights: levels of one shared table, a byte of scale and zero per 32 inputs.

weight = 2^exponent bf16(scale level + offset): see kernels/table4_matmul/layout.py. Per weight 4
bits of code, 8 / 32 of its group and 8 / k of its row: 4.252 at 5120 inputs.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from jaxtyping import Float, Int8, Int16, Int64, UInt8
from torch import Tensor

from kernels.int4_matmul.layout import ROWS, take
from kernels.registry import Ops
from kernels.table4_matmul import layout
from tr.nn.formats import many
from tr.nn.formats.int4 import BLOCK
from tr.nn.formats.many import Many, Restore
from tr.nn.formats.unfused import Unfused
from tr.tree import static, tree


@tree
class Table4(Unfused):
    """Stacked matrices of `splits` rows each, in the kernels' tiles."""

    tiles: Int16[Tensor, "row_tiles units lines words"]
    exponent: Int8[Tensor, " out"]
    splits: tuple[int, ...] = static()
    many: Many = static(default=Many())  # how `sequence` multiplies through operators

    @property
    def shape(self) -> tuple[int, int]:
        """Output and input width."""
        return sum(self.splits), self.tiles.shape[1] * layout.UNIT

    @property
    def nbytes(self) -> int:
        """Codes, group bytes and exponents, padded rows included."""
        return self.tiles.nbytes + self.exponent.nbytes

    @property
    def device(self) -> torch.device:
        return self.tiles.device

    def weight(self, dtype: torch.dtype) -> Float[Tensor, "out in"]:
        """The dense matrix: numbers of bfloat16, unless they are smaller than its smallest."""
        return layout.dequantise(self.tiles, self.exponent, dtype)

    def sequence(
        self, x: Float[Tensor, "... in"], ops: Ops | None = None
    ) -> Float[Tensor, "... out"]:
        """Many tokens; see `many.sequence`."""
        return many.sequence(self, x, ops, BLOCK)

    def rows(self, start: int, stop: int, dtype: torch.dtype) -> Float[Tensor, "some in"]:
        """The dense rows of tiles start..stop."""
        own = self.exponent[start * ROWS : stop * ROWS]
        return layout.dequantise(self.tiles[start:stop], own, dtype)

    def restore(self, ops: Ops) -> Restore:
        """What writes the rows of tiles as numbers; past the last row, zeros."""

        def write(start: int, stop: int, weight: Tensor) -> None:
            own = self.exponent[start * ROWS : stop * ROWS]
            ops.table4_restore(self.tiles[start:stop], own, weight[: len(own)])
            weight[len(own) :].zero_()

        return write

    def after(self, index: int) -> "Table4":
        """The stacked matrices from number `index` on, as one: a view."""
        first = sum(self.splits[:index])
        if first % ROWS:
            raise ValueError(
                f"table4: matrices can be split at multiples of {ROWS} rows, got {first}; keep this"
                " one in bf16"
            )
        rest = self.exponent[first:]
        return replace(self, tiles=self.tiles[first // ROWS :], exponent=rest, splits=(len(rest),))

    def first(self, n: int) -> "Table4":
        """The first n rows as one matrix: a view where they fill whole tiles."""
        if n % ROWS:
            return self.take(torch.arange(n, device=self.device))
        return replace(self, tiles=self.tiles[: n // ROWS], exponent=self.exponent[:n], splits=(n,))

    def take(self, rows: Int64[Tensor, " taken"]) -> "Table4":
        """Chosen rows in this order, as one matrix."""
        own = self.exponent.index_select(0, rows)
        return replace(self, tiles=take(self.tiles, rows), exponent=own, splits=(len(rows),))

    def step(self, x: Float[Tensor, "rows in"], ops: Ops) -> Float[Tensor, "rows out"]:
        """A few rows through the operator `table4_matmul`."""
        return ops.table4_matmul(x, self.tiles, self.exponent, list(self.splits))


def pack(
    codes: UInt8[Tensor, "out in"],
    groups: UInt8[Tensor, "out groups"],
    exponent: Int8[Tensor, " out"],
    splits: Sequence[int],
) -> Table4:
    """Raises ValueError for an input width that is no multiple of 128 and for codes past 15."""
    if sum(splits) != codes.shape[0]:
        raise ValueError(f"table4: splits {list(splits)} do not add up to {codes.shape[0]} rows")
    return Table4(tiles=layout.pack(codes, groups), exponent=exponent, splits=tuple(splits))


def unpack(
    x: Table4,
) -> tuple[UInt8[Tensor, "out in"], UInt8[Tensor, "out groups"], Int8[Tensor, " out"]]:
    """Codes, group bytes and exponents as `pack` took them."""
    return *layout.unpack(x.tiles, x.shape[0]), x.exponent


def table4(splits: Sequence[int], d_in: int, generator: torch.Generator) -> Table4:
    """Random weights of standard deviation d_in ** -0.5, made as codes on the generator's device:
    nothing wider is ever held.
    """
    tiles, exponent = layout.random(sum(splits), d_in, generator)
    return Table4(tiles=tiles, exponent=exponent, splits=tuple(splits))
