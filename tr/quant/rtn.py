"""Round to nearest: int4 weights from the weights alone.

Per output row and group of 128 inputs: scale = (max - min) / 15 (1 where that is 0) and minimum =
min, both rounded to bfloat16 first; code = clamp(round((w - minimum) / scale), 0, 15) in fp32.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from kernels.int4_matmul import layout
from kernels.int4_matmul.layout import GROUP, ROWS
from tr.model import text
from tr.nn.formats.dense import Dense, dense
from tr.nn.formats.int4 import Int4, int4
from tr.nn.formats.matrix import Matrix, stays

T = TypeVar("T")
BLOCK = 2**25  # weights in flight: about half a GiB of fp32 temporaries


@dataclass(frozen=True)
class Converted:
    """One matrix that became int4: its bits per weight, padding included, and its error."""

    name: str
    shape: tuple[int, int]
    bits_per_weight: float
    relative_error: float  # ||w - q|| / ||w||, Frobenius


@dataclass(frozen=True)
class Report:
    converted: tuple[Converted, ...]
    kept: tuple[str, ...]  # matrices that stayed as they were

    @property
    def bits_per_weight(self) -> float:
        """Over the converted matrices."""
        weights = [c.shape[0] * c.shape[1] for c in self.converted]
        bits = sum(n * c.bits_per_weight for n, c in zip(weights, self.converted, strict=True))
        return bits / sum(weights) if weights else 0.0


def round_to_nearest(weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """weight [n, k] -> codes [n, k] uint8, scale and minimum [n, k / 128] bfloat16."""
    w = weight.float().unflatten(1, (-1, GROUP))
    low, high = w.aminmax(dim=-1, keepdim=True)
    minimum, scale = low.bfloat16(), ((high - low) / 15).bfloat16()
    if not (minimum.isfinite() & scale.isfinite()).all():
        raise ValueError("int4: the weights hold infinite or missing numbers")
    scale = torch.where(scale == 0, 1.0, scale)
    codes = ((w - minimum.float()) / scale.float()).round_().clamp_(0, 15)
    return codes.to(torch.uint8).flatten(1), scale[..., 0], minimum[..., 0]


def quantise(dense: Dense, name: str = "weight") -> tuple[Int4, Converted]:
    """One matrix, on its own device, by blocks of rows that bound the temporaries."""
    weight = dense.weight
    n, k = weight.shape
    if k % GROUP:
        raise ValueError(
            f"int4: {name} has {k} inputs, no multiple of the group of {GROUP}; keep it in bf16"
        )
    step = max(1, BLOCK // (k * ROWS)) * ROWS
    tiles, error, total = [], 0.0, 0.0
    for block in weight.split(step):
        packed = layout.pack(*round_to_nearest(block))
        tiles.append(packed)
        w = block.float()
        error += (w - layout.dequantise(packed, len(block), torch.float32)).square().sum().item()
        total += w.square().sum().item()
    done = Int4(tiles=torch.cat(tiles), splits=dense.splits)
    bits = done.tiles.nbytes * 8 / (n * k)
    return done, Converted(name, (n, k), bits, (error / total) ** 0.5 if total else 0.0)


def arrive(name: str, dense: Dense) -> Matrix:
    """What becomes of one matrix of a checkpoint as soon as it is read; as `quantise_all`."""
    return dense if stays(dense.weight.shape, name) else quantise(dense, name)[0]


def random(
    splits: Sequence[int], d_in: int, generator: torch.Generator, dtype: torch.dtype
) -> Matrix:
    """A random matrix in the format that `quantise_all` gives its shape; never held wider."""
    if stays((sum(splits), d_in)):
        return dense(splits, d_in, generator, dtype)
    return int4(splits, d_in, generator)


def quantise_all(params: T) -> tuple[T, Report]:
    """Every matrix of a pytree in int4 except small ones and those named in KEPT.

    Of a target that shares its head with its embedding, the head becomes a matrix of its own and
    the embedding stays. Raises ValueError, by name, for a matrix of at least 128 inputs and outputs
    whose inputs are no multiple of 128. The result shares every tensor that stays.
    """
    if isinstance(params, text.Params) and params.lm_head is None:
        params = dataclasses.replace(params, lm_head=params.head)
    leaves, spec = pytree.tree_flatten_with_path(params, is_leaf=lambda x: isinstance(x, Dense))
    converted, kept, out = [], [], []
    for path, leaf in leaves:
        name = pytree.keystr(path).lstrip(".")
        if isinstance(leaf, Dense):
            if stays(leaf.weight.shape, name):
                kept.append(name)
            else:
                leaf, figures = quantise(leaf, name)
                converted.append(figures)
        out.append(leaf)
    return pytree.tree_unflatten(out, spec), Report(tuple(converted), tuple(kept))
