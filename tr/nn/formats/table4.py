"""Non-uniform 4-bit weights: entries of a shared 16-entry table, groups of 32 with small scales.

weight = table[code] * row * 2^(-octaves * exponent), rounded once to bfloat16: `row` is a bfloat16
scale of the output row, `octaves` the matrix's, the exponent 0..15 a group's own. Two bits of the
group pick one of four tables of int8 entries: plain, shifted by 4, and the negatives of both. Per
weight: 4 bits of code, 6 / 32 of its group, 16 / k of its row: 4.23 at k = 384, 4.19 at 5120.
Tables and the bit that shifts them: ik_llama.cpp's IQ4_KS.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import BFloat16, Float, Float32, UInt8
from torch import Tensor

from kernels.registry import Ops
from tr.tree import static, tree

GROUP = 32
EXPONENTS = 16
TABLES = 4
UNIT = 128  # inputs whose four groups' bits fill three bytes
TABLE = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
SHIFT = 4


def tables(device: torch.device | str = "cpu") -> Float[Tensor, "tables=4 levels=16"]:
    """All tables as fractions of 128, each ascending."""
    first = torch.tensor(TABLE, dtype=torch.float32, device=device)
    both = torch.stack([first, first + SHIFT])
    return torch.cat([both, -both.flip(1)]) / 128


def scales(row: Tensor, octaves: Tensor, exponent: Tensor) -> Tensor:
    """row [n, 1], octaves [] and exponent [n, groups] -> fp32 [n, groups]."""
    return row.float() * torch.exp2(-octaves * exponent.float())


@tree
class Table4:
    codes: UInt8[Tensor, "out half_in"]  # the even input in the low half of a byte
    groups: UInt8[Tensor, "out packed"]  # per group exponent and table: 6 bits, 4 in 3 bytes
    row: BFloat16[Tensor, " out"]
    octaves: Float32[Tensor, ""]  # between neighbouring exponents
    splits: tuple[int, ...] = static()

    @property
    def shape(self) -> tuple[int, int]:
        """Output and input width."""
        return self.codes.shape[0], 2 * self.codes.shape[1]

    @property
    def nbytes(self) -> int:
        return sum(t.nbytes for t in (self.codes, self.groups, self.row, self.octaves))

    @property
    def device(self) -> torch.device:
        return self.codes.device

    def weight(self, dtype: torch.dtype) -> Float[Tensor, "out in"]:
        """The dense matrix: in fp32, rounded once to `dtype`."""
        codes = torch.stack([self.codes & 15, self.codes >> 4], -1).flatten(1)
        exponent, which = unpack_groups(self.groups)
        levels = tables(self.device)[which]  # [out, groups, 16]
        entries = levels.gather(2, codes.long().unflatten(1, (-1, GROUP)))
        scale = scales(self.row[:, None], self.octaves, exponent)[..., None]
        return (entries * scale).flatten(1).to(dtype)

    def sequence(
        self, x: Float[Tensor, "... in"], ops: Ops | None = None
    ) -> Float[Tensor, "... out"]:
        """Many tokens, by the restored matrix in x's dtype."""
        return F.linear(x, self.weight(x.dtype))

    def step(self, x: Float[Tensor, "rows in"], ops: Ops) -> Float[Tensor, "rows out"]:
        """A few rows: the restored matrix through the operator `matmul`; no kernel reads codes."""
        return ops.matmul(x, self.weight(x.dtype), list(self.splits))


def pack(
    codes: Float[Tensor, "out in"],
    exponent: Float[Tensor, "out groups"],
    which: Float[Tensor, "out groups"],
    row: BFloat16[Tensor, " out"],
    octaves: Float32[Tensor, ""],
    splits: Sequence[int],
) -> Table4:
    """Codes and exponents 0..15 and table numbers 0..3, of any dtype."""
    if codes.shape[1] % UNIT:
        raise ValueError(
            f"table4: the input width must be a multiple of {UNIT}, got {codes.shape[1]}"
        )
    pairs = codes.to(torch.uint8).unflatten(1, (-1, 2))
    return Table4(
        codes=pairs[..., 0] | pairs[..., 1] << 4,
        groups=pack_groups(exponent, which),
        row=row,
        octaves=octaves,
        splits=tuple(splits),
    )


def pack_groups(exponent: Tensor, which: Tensor) -> UInt8[Tensor, "out packed"]:
    """Four groups' six bits, exponent above table, in three bytes, the first group lowest."""
    six = (exponent.to(torch.int32) * TABLES + which.to(torch.int32)).unflatten(1, (-1, 4))
    word = (six << torch.arange(0, 24, 6, dtype=torch.int32, device=six.device)).sum(
        -1, dtype=torch.int32
    )
    shift = torch.arange(0, 24, 8, dtype=torch.int32, device=six.device)
    return ((word[..., None] >> shift) & 255).to(torch.uint8).flatten(1)


def unpack_groups(packed: Tensor) -> tuple[Tensor, Tensor]:
    """exponent [out, groups] and table number [out, groups], int64."""
    triples = packed.to(torch.int32).unflatten(1, (-1, 3))
    shift = torch.arange(0, 24, 8, dtype=torch.int32, device=packed.device)
    word = (triples << shift).sum(-1, dtype=torch.int32)
    six = (word[..., None] >> torch.arange(0, 24, 6, dtype=torch.int32, device=word.device)) & 63
    six = six.flatten(1).long()
    return six // TABLES, six % TABLES
