"""How table weights lie in memory: int4's tiles, whose parameters are four group bytes instead.

A byte b stands for 32 inputs of one output row, nibble i of int4's words for group i of their 128.
scale = the bfloat16 number with the bits FIRST + STEP b: 42 or 43 of them to an octave, as even as
bits are. offset = -(ZERO - APART (b mod 4)) scale, rounded to bfloat16: four places for zero among
the levels, which are uneven on both sides of it. level = LEVELS[code].
weight = 2^exponent bf16(level scale + offset), where the sum is exact in fp32 before its rounding.
"""

import math

import torch
from torch import Tensor

from kernels.int4_matmul import layout as int4
from kernels.int4_matmul.layout import ROWS

GROUP = 32  # inputs that share a byte
UNIT = int4.GROUP  # inputs of a tile
BYTES = UNIT // GROUP
LEVELS = (0, 12, 23, 33, 41, 49, 56, 62, 68, 74, 80, 87, 95, 104, 114, 127)
FIRST, STEP = 0x3A00, 3  # 2^-11 and, of 128 to an octave, how far a byte goes
ZERO, APART, ZEROS = 71, 4, 4
LEAST = -100  # power of two of a row, and -LEAST the most


def pack(codes: Tensor, groups: Tensor) -> Tensor:
    """codes [n, k] uint8 in 0..15 and groups [n, k / 32] uint8 -> tiles."""
    n, k = codes.shape
    if k % UNIT or not k:
        raise ValueError(f"table4: the input width must be a multiple of {UNIT}, got {k}")
    if groups.shape != (n, k // GROUP) or groups.dtype != torch.uint8:
        raise ValueError(
            f"table4: groups must be uint8 of shape {(n, k // GROUP)}, got {groups.dtype} of"
            f" {tuple(groups.shape)}"
        )
    pairs = groups.contiguous().view(torch.bfloat16).unflatten(1, (-1, 2))
    return int4.pack(codes, pairs[..., 0], pairs[..., 1])


def unpack(tiles: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """The inverse of `pack`: codes [n, k] and groups [n, k / 32]."""
    codes, *pairs = int4.unpack(tiles, n)
    return codes, torch.stack(pairs, -1).view(torch.uint8).flatten(1)


def scales(groups: Tensor) -> tuple[Tensor, Tensor]:
    """Bytes of any dtype -> scale and offset, both bfloat16."""
    b = groups.to(torch.int32)
    scale = (FIRST + STEP * b).to(torch.int16).view(torch.bfloat16)
    return scale, -((ZERO - APART * (b % ZEROS)) * scale.float()).bfloat16()


def restore(levels: Tensor, groups: Tensor) -> Tensor:
    """level scale + offset, rounded to bfloat16 and given in fp32; groups broadcast with levels."""
    scale, offset = scales(groups)
    return (levels.float() * scale.float() + offset.float()).bfloat16().float()


def levels(device: torch.device | str = "cpu") -> Tensor:
    return torch.tensor(LEVELS, dtype=torch.float32, device=device)


def powers(exponent: Tensor) -> Tensor:
    """2^exponent in fp32, exactly, for exponents from LEAST to -LEAST of any integer type."""
    return (exponent.to(torch.int32) + 127 << 23).view(torch.float32)


def dequantise(tiles: Tensor, exponent: Tensor, dtype: torch.dtype) -> Tensor:
    """tiles and exponent [n] int8 -> weight [n, k]."""
    codes, groups = unpack(tiles, len(exponent))
    own = levels(tiles.device).index_select(0, codes.to(torch.int32).flatten())
    q = own.view(len(codes), -1, GROUP)
    wide = torch.promote_types(dtype, torch.float32)
    weight = restore(q, groups[..., None]).flatten(1).to(wide)
    return (weight * powers(exponent)[:, None]).to(dtype)


def random(n: int, k: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Tiles and exponents of uniform random codes: weights of mean about 0 and deviation k ** -0.5,
    in rows of a larger and a smaller half.
    """
    tiles = int4.random(n, k, generator)
    choice = torch.arange(1, 256, ZEROS)  # bytes whose zero is nearest to the mean level
    deviation = restore(levels()[:, None], choice).std(0, correction=0)
    wanted = (k * (1 + 0.5**2) / 2) ** -0.5
    most = math.ceil(math.log2(wanted / deviation[-1].item()))
    byte = choice[(deviation - wanted / 2**most).abs().argmin()].item()
    tiles[:, :, ROWS:].view(torch.uint8).fill_(byte)
    halves = torch.randint(0, 2, (n,), generator=generator, device=tiles.device)
    return tiles, (most - halves).to(torch.int8)
