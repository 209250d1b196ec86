"""A KVarN cache: tiles of 128 tokens, packed in few bits once all their tokens are accepted.

Rows are held rotated (hadamard.py). Tile t is that of positions 128 t .. 128 t + 127. The row at
position p sees tiles 1 .. edge(p) - 1 packed, edge(p) = floor((p - 16) / 128), and all others as
they were stored, in fp16: tile 0 for ever (`sink`), the newest ones from a ring of two tiles. What
a row sees depends on positions alone, never on the rows that run beside it. A step has at most 16
rows, so of the tiles that its rows see packed all tokens were accepted before it began; and the
rows of a step, with what they see exactly, span at most 32 positions past the sink's and their own
tiles' starts: two tiles.

Of a packed tile, with m the mean of the sink's rows (keys and values apart):
    k[t, c] = (code[t, c] - 8 + z[c]) a[c] r[t] + m[c]          codes of 4 bits
    v[t, c] = (code[t, c] - half + z[t]) r[t] a[c] + m[c]       codes of 2 or 4, half 2 or 8
In words of 16 bits, lowest bits first: k_codes [tiles, 128, d / 4], dims j, j + d / 4, ... in word
(t, j); v_codes [tiles, lines = d bits / 8, 64], dims j, j + lines, ... of token t in the lower byte
of word (j, t), of token t + 64 in the upper. Scales are fp16: k_scales [tiles, 2 d + 128] = a, z,
r; v_scales [tiles, d + 256] = a, r, z.

Packing a head's tile: m is subtracted, what is left is divided by its root mean square, then tokens
and dims are divided by factors that even out their second moments (`balance`); then the keys of
each dim, and the values of each token, are rounded on a grid of their own (`grid`).
Source: KVarN (arXiv 2606.03458), with another balance, range search, gain and means.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from kernels.precision import wide

TILE = 128
LAG = 16  # rows of a step
RING = 2 * TILE
LARGEST = 65504.0  # of fp16
ROUNDS = 8  # of `balance`
SHRINKS = 12  # ranges that `grid` tries
FLAT = 2048.0  # steps from zero on to the middle of a row that counts as constant
FINEST = {2: 0.05, 4: 0.04}  # by which part each range is smaller than the one before


def edge(pos: int) -> int:
    """Tiles before this one are seen packed by the row at `pos`, tile 0 aside."""
    return max(pos - LAG, 0) // TILE


def first_seen(pos: int, rows: int) -> range:
    """Tiles that one of the rows pos .. pos + rows - 1 is the first position to see packed."""
    return range(max(edge(pos - 1), 1), max(edge(pos + rows - 1), 1))


def held(x: Tensor, dtype: torch.dtype = torch.float16) -> Tensor:
    """Rotated rows as `sink` and `ring` hold them, and scales."""
    return x.clamp(-LARGEST, LARGEST).to(dtype)


def value_bits(v_codes: Tensor, d: int) -> int:
    """Of the codes of values [..., lines, 64]."""
    return 8 * v_codes.shape[-2] // d


def scale_rows(d: int) -> tuple[int, int]:
    """fp16 numbers of a tile's keys and of its values."""
    return 2 * d + TILE, d + 2 * TILE


def tile_bytes(d: int, bits: int) -> int:
    """Of one tile of one key-value head."""
    return TILE * d * (4 + bits) // 8 + 2 * sum(scale_rows(d))


def mean(sink: Tensor) -> Tensor:
    """sink [..., 128, d] -> fp32 [..., d], each dim's rows summed in order of the library."""
    return wide(sink).mean(-2)


def pack_keys(x: Tensor, m: Tensor) -> tuple[Tensor, Tensor]:
    """Rows [heads, 128, d] and their mean [heads, d] -> codes and scales of a tile."""
    y, size, token, dim = _level(x, m)
    codes, step, zero = grid(y.transpose(1, 2), 4)  # [heads, d, 128]
    scales = torch.cat([dim * step, zero, token * size], 1)
    return _words(codes.transpose(1, 2).chunk(4, -1), 4), held(scales)


def pack_values(x: Tensor, m: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    y, size, token, dim = _level(x, m)
    codes, step, zero = grid(y, bits)  # [heads, 128, d]
    scales = torch.cat([dim * size, token * step, zero], 1)
    halves = codes.transpose(1, 2).chunk(2, -1)  # [heads, d, 64]
    return _words([x for h in halves for x in h.chunk(8 // bits, -2)], bits), held(scales)


def keys(codes: Tensor, scales: Tensor, m: Tensor) -> Tensor:
    """Codes [..., 128, d / 4], scales [..., 2 d + 128], m [..., d] -> fp32 [..., 128, d]."""
    x = torch.cat(_numbers(codes, 4), -1)
    a, z, r = wide(scales).split([x.shape[-1], x.shape[-1], TILE], -1)
    return (x + z[..., None, :]) * a[..., None, :] * r[..., None] + m[..., None, :]


def values(codes: Tensor, scales: Tensor, m: Tensor) -> Tensor:
    """Codes [..., lines, 64], scales [..., d + 256], m [..., d] -> fp32 [..., 128, d]."""
    parts = _numbers(codes, value_bits(codes, m.shape[-1]))
    half = len(parts) // 2
    x = torch.cat([torch.cat(parts[:half], -2), torch.cat(parts[half:], -2)], -1)
    x = x.transpose(-1, -2)
    a, r, z = wide(scales).split([x.shape[-1], TILE, TILE], -1)
    return (x + z[..., None]) * r[..., None] * a[..., None, :] + m[..., None, :]


def _level(x: Tensor, m: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """What is rounded [heads, 128, d], and by what it was divided: size [heads, 1], [heads, 128]
    and [heads, d].
    """
    y = wide(x) - m[:, None]
    size = y.square().mean((1, 2)).sqrt()[:, None]
    size = torch.where(size > 0, size, 1.0)
    y = y / size[..., None]
    token, dim = balance(y)
    return y / token[..., None] / dim[:, None], size, token, dim


def balance(y: Tensor) -> tuple[Tensor, Tensor]:
    """Factors of tokens and dims, 2^-10 .. 2^10, of y [heads, 128, d]: [heads, 128], [heads, d].

    By turns the second moments of dims and of tokens are made 1; the round is kept whose moments
    differ the least, the largest over the smallest of dims times that of tokens.
    """
    square = y.square()
    token, dim = torch.ones_like(square[..., 0]), torch.ones_like(square[:, 0])
    best = torch.full_like(token[:, :1], torch.inf)
    chosen = token, dim
    for turn in range(ROUNDS + 1):
        even = square / token[..., None] / dim[:, None]
        tokens, dims = even.mean(2), even.mean(1)
        uneven = _spread(tokens) * _spread(dims)
        better = uneven < best
        best = torch.where(better, uneven, best)
        chosen = tuple(torch.where(better, a, b) for a, b in zip((token, dim), chosen, strict=True))
        if turn < ROUNDS:
            dim = (dim * dims).clamp(2.0**-20, 2.0**20)
            even = square / token[..., None] / dim[:, None]
            token = (token * even.mean(2)).clamp(2.0**-20, 2.0**20)
    return chosen[0].sqrt(), chosen[1].sqrt()


def _spread(moments: Tensor) -> Tensor:
    low, high = moments.aminmax(dim=1, keepdim=True)
    return high.clamp(min=2.0**-20) / low.clamp(min=2.0**-20)


def grid(y: Tensor, bits: int) -> tuple[Tensor, Tensor, Tensor]:
    """Rows [..., n] -> codes [..., n], step and zero [...]: y is about (code - half + zero) step.

    Of ranges about the middle, each smaller than the one before, the one with the least squares is
    taken. Then steps are scaled so that y' . y = y . y: rounding does not shrink rows. A row that
    is nearly constant is its step, its middle, with zero 1.
    """
    top, half = 2.0**bits - 1, 2.0 ** (bits - 1)
    low, high = y.aminmax(dim=-1, keepdim=True)
    middle, width = (low + high) * 0.5, high - low
    least = torch.full_like(low, torch.inf)
    codes, step = torch.zeros_like(y), torch.zeros_like(low)
    for i in range(SHRINKS):
        narrow = width * ((1 - i * FINEST[bits]) / top)
        inverse = torch.where(narrow > 0, 1 / narrow, 0.0)
        found = ((y - middle) * inverse + (top * 0.5 + 0.5)).floor().clamp(0, top)
        off = ((found - top * 0.5) * narrow + middle - y).square().sum(-1, keepdim=True)
        better = off < least
        least = torch.where(better, off, least)
        codes, step = torch.where(better, found, codes), torch.where(better, narrow, step)
    flat = step * FLAT <= middle.abs()
    zero = torch.where(flat, 1.0, middle / step + (half - top * 0.5))
    codes, step = torch.where(flat, half, codes), torch.where(flat, middle, step)
    whole = y.square().sum(-1, keepdim=True)
    shared = (y * (codes - half + zero) * step).sum(-1, keepdim=True)
    gain = torch.where(flat | (shared <= 0), 1.0, whole / shared).clamp(0.5, 2.0)
    return codes, (step * gain)[..., 0], zero[..., 0]


def _words(parts: Sequence[Tensor], bits: int) -> Tensor:
    """Codes as fp32, one tensor for each place in a word -> int16."""
    out = torch.zeros_like(parts[0], dtype=torch.int32)
    for i, part in enumerate(parts):
        out |= part.to(torch.int32) << (bits * i)
    return out.to(torch.int16)


def _numbers(words: Tensor, bits: int) -> list[Tensor]:
    """int16 -> the centred codes of each place in a word, as fp32."""
    most, half = 2**bits - 1, 2 ** (bits - 1)
    return [((words >> (bits * i)) & most).float() - half for i in range(16 // bits)]
