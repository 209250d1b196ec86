"""The glue of one sublayer of a block of eight rows, at the released draft's convolutions."""

from typing import Any

import torch
from torch import Tensor

from kernels.int4_matmul.layout import GROUP
from kernels.rms_norm.reference import times_unit
from tr.bench import Bench, Draw, Sizes, Widths

EPS = 1e-6
WIDTH, CHANNELS = 2, 16


def cases(c: Widths) -> dict[str, Sizes]:
    return {"d_model": {"d": c.d_model}} if not c.d_model % GROUP else {}


def embed_cases(c: Widths) -> dict[str, Sizes]:
    return {name: {**sizes, "vocab": c.vocab} for name, sizes in cases(c).items()}


def embed_inputs(draw: Draw, rows: int, d: int, vocab: int) -> list[Any]:
    return [draw(vocab, d), draw.scalar(vocab // 2), vocab - 1, rows, 0.5, draw(d), EPS]


def inputs(draw: Draw, rows: int, d: int) -> list[Any]:
    shares = draw(rows, d // GROUP, dtype=torch.float32).square_().mul_(GROUP / d)
    return [draw(rows, d), shares, *_taps(draw, rows, d), 0]


def add_norm_inputs(draw: Draw, rows: int, d: int) -> list[Any]:
    return [draw(rows, d), *_taps(draw, rows, d), 1, draw(rows, d), draw(d), EPS]


def _taps(draw: Draw, rows: int, d: int) -> tuple[Tensor, Tensor]:
    return draw(rows, 2 * WIDTH * d // CHANNELS), draw(2, WIDTH, d)


def embed_nbytes(
    embed: Tensor, anchor: Tensor, mask: int, rows: int, scale: float, gain: Tensor, eps: float
) -> int:
    return min(rows, 2) * gain.nbytes + gain.nbytes + rows * _left(gain)


def nbytes(x: Tensor, squares: Tensor, dynamic: Tensor, base: Tensor, side: int) -> int:
    return 2 * x.nbytes + 2 * squares.nbytes + (dynamic.nbytes + base.nbytes) // 2


def add_norm_nbytes(
    z: Tensor,
    dynamic: Tensor,
    base: Tensor,
    side: int,
    residual: Tensor,
    gain: Tensor,
    eps: float,
) -> int:
    read = z.nbytes + residual.nbytes + gain.nbytes + (dynamic.nbytes + base.nbytes) // 2
    return read + z.shape[0] * _left(gain)


def _left(gain: Tensor) -> int:
    """Bytes of one row as a norm leaves it: the row, the normed row, sums and squares."""
    return 2 * gain.nbytes + 2 * 4 * gain.numel() // GROUP


def summed_and_normed(out: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """A variant may leave the norm's factor in the shares."""
    s, normed, _, squares = out
    return s, times_unit(normed, squares)


BENCH = (
    Bench("dflash_embed", embed_cases, embed_inputs, embed_nbytes, summed_and_normed),
    Bench("dflash_conv", cases, inputs, nbytes),
    Bench("dflash_conv_add_norm", cases, add_norm_inputs, add_norm_nbytes, summed_and_normed),
)
