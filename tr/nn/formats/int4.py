"""Group-wise asymmetric int4 weights: codes 0..15, bfloat16 scale and minimum per 128 inputs."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from jaxtyping import BFloat16, Float, Int16, Int64, UInt8
from torch import Tensor

from kernels.int4_matmul import layout
from kernels.int4_matmul.layout import GROUP, ROWS
from kernels.registry import Ops
from tr.nn.formats import many
from tr.nn.formats.dense import Dense
from tr.nn.formats.many import Many, Restore
from tr.nn.formats.operand import Operand
from tr.tree import static, tree

BLOCK = 2**26  # weights that are restored at once without operators: 128 MiB of bfloat16


@tree
class Int4:
    """Stacked matrices of `splits` rows each, in the kernels' tiles: weight = codes * scale +
    minimum. Scales and minimums lie inside the tiles, so that one copy brings all of a tile.
    """

    tiles: Int16[Tensor, "row_tiles groups lines words"]
    splits: tuple[int, ...] = static()
    many: Many = static(default=Many())  # how `sequence` multiplies through operators

    @property
    def shape(self) -> tuple[int, int]:
        """Output and input width."""
        return sum(self.splits), self.tiles.shape[1] * GROUP

    @property
    def nbytes(self) -> int:
        """Codes, scales and minimums, padded rows included."""
        return self.tiles.nbytes

    @property
    def device(self) -> torch.device:
        return self.tiles.device

    @property
    def scale(self) -> BFloat16[Tensor, "out groups"]:
        return layout.scale_of(self.tiles)[: self.shape[0]]

    @property
    def minimum(self) -> BFloat16[Tensor, "out groups"]:
        return layout.minimum_of(self.tiles)[: self.shape[0]]

    def weight(self, dtype: torch.dtype) -> Float[Tensor, "out in"]:
        """The dense matrix: codes * scale + minimum in fp32, rounded once to `dtype`."""
        return layout.dequantise(self.tiles, self.shape[0], dtype)

    def sequence(
        self, x: Float[Tensor, "... in"], ops: Ops | None = None
    ) -> Float[Tensor, "... out"]:
        """Many tokens; see `many.sequence`."""
        return many.sequence(self, x, ops, BLOCK)

    def rows(self, start: int, stop: int, dtype: torch.dtype) -> Float[Tensor, "some in"]:
        """The dense rows of tiles start..stop."""
        n = min(stop * ROWS, self.shape[0]) - start * ROWS
        return layout.dequantise(self.tiles[start:stop], n, dtype)

    def restore(self, ops: Ops) -> Restore:
        """What writes the rows of tiles as numbers."""
        return lambda start, stop, weight: ops.int4_restore(self.tiles[start:stop], weight)

    def after(self, index: int) -> "Int4":
        """The stacked matrices from number `index` on, as one: a view."""
        first = sum(self.splits[:index])
        if first % ROWS:
            raise ValueError(
                f"int4: matrices can be split at multiples of {ROWS} rows, got {first}; keep this"
                " one in bf16"
            )
        return replace(self, tiles=self.tiles[first // ROWS :], splits=(self.shape[0] - first,))

    def first(self, n: int) -> "Int4":
        """The first n rows as one matrix: a view where they fill whole tiles."""
        if n % ROWS:
            return self.take(torch.arange(n, device=self.device))
        return replace(self, tiles=self.tiles[: n // ROWS], splits=(n,))

    def take(self, rows: Int64[Tensor, " taken"]) -> "Int4":
        """Chosen rows in this order, as one matrix."""
        return replace(self, tiles=layout.take(self.tiles, rows), splits=(len(rows),))

    def step(self, x: Float[Tensor, "rows in"], ops: Ops) -> Float[Tensor, "rows out"]:
        """A few rows through the operator `int4_matmul`."""
        return self.project(Operand(x=x), ops)

    def project(self, y: Operand, ops: Ops) -> Float[Tensor, "rows out"]:
        """A few rows as their producer left them."""
        return ops.int4_matmul(y.x, self.tiles, list(self.splits), y.sums, y.squares)

    def project_beside(
        self, y: Operand, beside: Dense, ops: Ops
    ) -> tuple[Float[Tensor, "rows out"], Float[Tensor, "rows beside"]]:
        """This matrix and a small dense one that reads the same rows."""
        return ops.int4_matmul_beside(
            y.x,
            self.tiles,
            list(self.splits),
            beside.weight,
            list(beside.splits),
            y.sums,
            y.squares,
        )

    def gate_up(self, y: Operand, ops: Ops) -> Operand:
        """silu(gate) * up of the stacked [gate | up]."""
        if self.splits[0] % GROUP:
            return Operand(x=ops.silu_mul(self.project(y, ops)))
        x, sums = ops.int4_gate_up(y.x, self.tiles, y.sums, y.squares)
        return Operand(x=x, sums=sums)

    def add_norm(
        self,
        y: Operand,
        residual: Float[Tensor, "rows out"],
        gain: Float[Tensor, " out"],
        eps: float,
        ops: Ops,
    ) -> tuple[Float[Tensor, "rows out"], Operand]:
        """s = residual + W y, and the norm of s with gain 1 + gain; y is no unfinished norm."""
        assert y.squares is None
        if self.shape[0] % GROUP:
            s, normed = ops.add_rms_norm(residual, self.project(y, ops), gain, eps)
            return s, Operand(x=normed)
        s, x, sums, squares = ops.int4_add_norm(y.x, self.tiles, residual, gain, eps, y.sums)
        return s, Operand(x=x, sums=sums, squares=squares)


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
