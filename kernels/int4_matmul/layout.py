"""How int4 weights lie in memory: whole tiles of 64 output rows and one group of 128 inputs.

tiles [row tiles, groups, 68, 32] int16; a tile is 4352 contiguous bytes, a multiple of 128:
- rows 0..63, one per output row: 32 words; bits 4 i .. 4 i + 3 of word j hold the code of input
  32 i + j, so nibble i of a row is 32 consecutive inputs, in order;
- rows 64..67: for each of the 64 rows its scale and its minimum, bfloat16 bits: one 32-bit word.
Two neighbouring words make a 32-bit register from which one AND and OR per nibble give the two
neighbouring elements of a tensor core operand. Output rows past n have scale and minimum 0.
"""

import torch
from torch import Tensor

GROUP = 128  # inputs that share a scale and a minimum
ROWS = 64  # output rows of a tile
WORDS = 32  # 16-bit words of one row of a tile
LINES = ROWS + 4  # lines of WORDS words per tile: codes, scales, minimums
TILE = LINES * WORDS  # 16-bit words per tile

#: PTX, two words to four pairs of bfloat16: (word & 15) | 128.0, three times shifted
UNPACK = """{
    .reg .b32 t;
    lop3.b32 $0, $4, 0x000f000f, 0x43004300, 0xea;
    shr.u32 t, $4, 4;
    lop3.b32 $1, t, 0x000f000f, 0x43004300, 0xea;
    shr.u32 t, $4, 8;
    lop3.b32 $2, t, 0x000f000f, 0x43004300, 0xea;
    shr.u32 t, $4, 12;
    lop3.b32 $3, t, 0x000f000f, 0x43004300, 0xea;
    }"""


def pack(codes: Tensor, scale: Tensor, minimum: Tensor) -> Tensor:
    """codes [n, k] uint8 in 0..15, scale and minimum [n, k / 128] bfloat16 -> tiles."""
    n, k = codes.shape
    if k % GROUP or k == 0 or n == 0:
        raise ValueError(f"int4: the input width must be a multiple of {GROUP}, got {n} x {k}")
    groups = k // GROUP
    for name, t in (("scale", scale), ("minimum", minimum)):
        if t.shape != (n, groups) or t.dtype != torch.bfloat16:
            raise ValueError(
                f"int4: {name} must be bfloat16 of shape {(n, groups)},"
                f" got {t.dtype} of {tuple(t.shape)}"
            )
    if codes.dtype != torch.uint8 or int(codes.max()) > 15:
        raise ValueError("int4: codes must be uint8 in 0..15")
    q = codes.view(n, groups, 4, WORDS).to(torch.int32)
    shift = 4 * torch.arange(4, dtype=torch.int32, device=codes.device)[:, None]
    words = (q << shift).sum(2, dtype=torch.int32).to(torch.int16)  # [n, groups, 32], wraps
    return _assemble(words, torch.stack([scale, minimum], -1).view(torch.int16))


def take(tiles: Tensor, rows: Tensor) -> Tensor:
    """Tiles of chosen output rows [n] int64, in this order: bits are moved, nothing is decoded."""
    tile, line = rows // ROWS, rows % ROWS
    pairs = tiles.flatten(2)[:, :, ROWS * WORDS :].unflatten(2, (ROWS, 2))
    return _assemble(tiles[tile, :, line], pairs[tile, :, line])


def _assemble(words: Tensor, pairs: Tensor) -> Tensor:
    """Code words [n, groups, 32] and parameters [n, groups, 2] -> tiles."""
    n, groups, _ = words.shape
    tiles = words.new_zeros(-(-n // ROWS), groups, LINES, WORDS)
    _put(tiles[:, :, :ROWS], words)
    _put(tiles.flatten(2)[:, :, ROWS * WORDS :].unflatten(2, (ROWS, 2)), pairs)
    return tiles


def _put(out: Tensor, rows: Tensor) -> None:
    """out [row tiles, groups, 64, c] = rows [n, groups, c] by tiles of 64 rows."""
    whole = rows.shape[0] // ROWS
    if whole:
        out[:whole] = rows[: whole * ROWS].unflatten(0, (whole, ROWS)).transpose(1, 2)
    if rest := rows.shape[0] - whole * ROWS:
        out[whole, :, :rest] = rows[whole * ROWS :].transpose(0, 1)


def codes_of(tiles: Tensor) -> Tensor:
    """tiles -> codes [64 row tiles, k] uint8, padded rows included."""
    words = tiles[:, :, :ROWS].transpose(1, 2).to(torch.int32)  # [row tiles, 64, groups, 32]
    shift = 4 * torch.arange(4, dtype=torch.int32, device=tiles.device)[:, None]
    codes = (words[..., None, :] >> shift) & 15  # [row tiles, 64, groups, 4, 32]
    return codes.to(torch.uint8).flatten(2).flatten(0, 1)


def _parameter(tiles: Tensor, which: int) -> Tensor:
    bits = tiles[:, :, ROWS:].flatten(2)[:, :, which::2].transpose(1, 2)  # [row tiles, 64, groups]
    return bits.flatten(0, 1).contiguous().view(torch.bfloat16)


def scale_of(tiles: Tensor) -> Tensor:
    """tiles -> scale [64 row tiles, groups] bfloat16."""
    return _parameter(tiles, 0)


def minimum_of(tiles: Tensor) -> Tensor:
    """tiles -> minimum [64 row tiles, groups] bfloat16."""
    return _parameter(tiles, 1)


def unpack(tiles: Tensor, n: int) -> tuple[Tensor, Tensor, Tensor]:
    """The inverse of `pack`: codes [n, k], scale and minimum [n, k / 128]."""
    return codes_of(tiles)[:n], scale_of(tiles)[:n], minimum_of(tiles)[:n]


def dequantise(tiles: Tensor, n: int, dtype: torch.dtype) -> Tensor:
    """tiles -> weight [n, k]: codes * scale + minimum in fp32 (fp64 if asked), then `dtype`."""
    wide = torch.promote_types(dtype, torch.float32)
    codes, scale, minimum = unpack(tiles, n)
    q = codes.unflatten(1, (-1, GROUP)).to(wide)
    return (q * scale[..., None].to(wide) + minimum[..., None].to(wide)).flatten(1).to(dtype)


def random(n: int, k: int, generator: torch.Generator) -> Tensor:
    """Tiles of uniform random codes whose weights have mean 0 and deviation k ** -0.5."""
    if k % GROUP:
        raise ValueError(f"int4: the input width must be a multiple of {GROUP}, got {k}")
    shape = (-(-n // ROWS), k // GROUP, LINES, WORDS)
    tiles = torch.empty(shape, dtype=torch.int16, device=generator.device)
    tiles.random_(-(2**15), 2**15, generator=generator)
    scale = k**-0.5 / (255 / 12) ** 0.5  # the deviation of 0..15 is sqrt(255 / 12)
    parameters = tiles.view(torch.bfloat16)[:, :, ROWS:]
    parameters[..., ::2] = scale
    parameters[..., 1::2] = -7.5 * scale
    if rest := n % ROWS:  # padding
        parameters[-1].flatten(1)[:, 2 * rest :] = 0
    return tiles
