"""The definitions, in torch's own order; `convolve` is what training differentiates."""

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.define import Support, variant
from kernels.int4_matmul.layout import GROUP
from kernels.int4_matmul.reference import group_sums, whole
from kernels.rms_norm.reference import rms_norm_plain, times_unit

SHAPES = {"d_model": GROUP}


def convolve(z: Tensor, base: Tensor, dynamic: Tensor) -> Tensor:
    """z [..., rows, d], base [width, d], dynamic [..., rows, width, groups] -> [..., rows, d].

    The base products are summed first, each dynamic product is then added with one rounding.
    """
    rows, d = z.shape[-2:]
    taps = dynamic.repeat_interleave(d // dynamic.shape[-1], -1)
    shifted = [F.pad(z, (0, 0, j, 0))[..., :rows, :] for j in range(len(base))]
    out = shifted[0] * base[0]
    for j in range(1, len(base)):
        out = out + shifted[j] * base[j]
    for j in range(len(base)):
        out = torch.addcmul(out, taps[..., j, :], shifted[j])
    return out


def _of_side(base: Tensor, dynamic: Tensor, side: int) -> tuple[Tensor, Tensor]:
    """base [width, d] and dynamic [rows, width, groups] of one side."""
    sides, width, _ = base.shape
    return base[side], dynamic.unflatten(-1, (sides, width, -1))[:, side]


def _parts(s: Tensor, gain: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    normed = rms_norm_plain(s, gain, eps)
    return s, normed, group_sums(normed), whole(normed)


def _fake_parts(s: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    rows, d = s.shape
    shares = [s.new_empty(rows, d // GROUP, dtype=torch.float32) for _ in range(2)]
    return s, torch.empty_like(s), shares[0], shares[1]


def fake_embed(
    embed: Tensor, anchor: Tensor, mask: int, rows: int, scale: float, gain: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return _fake_parts(embed.new_empty(rows, embed.shape[1]))


@variant("dflash_embed", "reference", fake_embed, support=Support(multiples=SHAPES))
def dflash_embed(
    embed: Tensor, anchor: Tensor, mask: int, rows: int, scale: float, gain: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """embed [vocab, d], anchor int64 scalar, gain [d] -> x [rows, d], and its norm.

    x is scale times the embeddings of the anchor and of rows - 1 masks. The norm comes in parts:
    it is normed rsqrt(sum(squares)); normed [rows, d], sums and squares [rows, d / 128] fp32.
    """
    ids = torch.full((rows,), mask, dtype=torch.int64, device=embed.device)
    ids[0] = anchor
    return _parts(F.embedding(ids, embed) * scale, gain, eps)


def fake_conv(
    x: Tensor, squares: Tensor, dynamic: Tensor, base: Tensor, side: int
) -> tuple[Tensor, Tensor]:
    rows, d = x.shape
    return torch.empty_like(x), x.new_empty(rows, d // GROUP, dtype=torch.float32)


@variant("dflash_conv", "reference", fake_conv, support=Support(multiples=SHAPES))
def dflash_conv(
    x: Tensor, squares: Tensor, dynamic: Tensor, base: Tensor, side: int
) -> tuple[Tensor, Tensor]:
    """x [rows, d], which stand for x rsqrt(sum(squares)), convolved, and their sums by 128.

    squares [rows, d / 128] fp32; base [sides, width, d]; dynamic [rows, sides width groups].
    """
    y = convolve(times_unit(x, squares), *_of_side(base, dynamic, side))
    return y, group_sums(y)


def fake_conv_add_norm(
    z: Tensor,
    dynamic: Tensor,
    base: Tensor,
    side: int,
    residual: Tensor,
    gain: Tensor,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return _fake_parts(torch.empty_like(residual))


@variant("dflash_conv_add_norm", "reference", fake_conv_add_norm, support=Support(multiples=SHAPES))
def dflash_conv_add_norm(
    z: Tensor,
    dynamic: Tensor,
    base: Tensor,
    side: int,
    residual: Tensor,
    gain: Tensor,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """s = residual + conv(z) [rows, d] and its norm in parts, as `dflash_embed` gives them."""
    return _parts(residual + convolve(z, *_of_side(base, dynamic, side)), gain, eps)
