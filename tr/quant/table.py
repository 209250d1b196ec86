"""Weights for `formats.table4`: each group's byte by search, codes by GPTQ."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TypeVar

import torch
from torch import Tensor

from kernels.table4_matmul.layout import GROUP, LEAST, LEVELS, UNIT, levels, powers, restore, scales
from tr.model import text
from tr.nn.formats import table4
from tr.nn.formats.dense import Dense, dense
from tr.nn.formats.matrix import Matrix, stays
from tr.nn.formats.table4 import Table4
from tr.quant.gptq import damped, gptq, toward
from tr.quant.hessian import Moments, matrices, replace_matrices
from tr.quant.recipe import ROUNDS, Recipe
from tr.quant.refine import sweep

ROOM = 1.06  # over a row's largest weight, for what carried errors add
AROUND = range(-26, 17)  # bytes tried about the one whose levels end at a group's largest weight
COARSE = 3  # of them, for rtn: every zero is among them
END = 64  # of a byte's levels, in its scale, whatever its zero
BLOCK = 2**22  # weights searched at once

T = TypeVar("T")
METHODS = ("rtn", "mse", "gptq", "gptaq", "refined")


@dataclass(frozen=True)
class Levels:
    """Groups of 32 inputs by row: exponent and byte [n, 1] int32."""

    exponent: Tensor
    byte: Tensor

    @cached_property
    def parameters(self) -> tuple[Tensor, Tensor]:
        """Scale and offset as weights have them, fp32."""
        scale, offset = (t.float() for t in scales(self.byte))
        return scale * powers(self.exponent), offset * powers(self.exponent)

    def codes(self, w: Tensor) -> Tensor:
        scale, offset = self.parameters
        return _nearest((w - offset) / scale, levels(w.device)).float()

    def errors(self, w: Tensor) -> Tensor:
        """Squared distances to the nearest levels, before these are rounded."""
        scale, offset = self.parameters
        x, own = (w - offset) / scale, levels(w.device)
        return ((own[_nearest(x, own)] - x) * scale).square_()

    def values(self, codes: Tensor) -> Tensor:
        found = restore(levels(codes.device)[codes.long()], self.byte)
        return found * powers(self.exponent)


def _nearest(x: Tensor, levels: Tensor) -> Tensor:
    return torch.bucketize(x, (levels[1:] + levels[:-1]) / 2, out_int32=True)


def exponents(weight: Tensor) -> Tensor:
    """The least power of two by row [n, 1] int32 with which the largest scale reaches its weights.

    Raises ValueError for weights that are no finite numbers.
    """
    top = weight.abs().amax(1, keepdim=True)
    if not top.isfinite().all():
        raise ValueError("table4: the weights hold infinite or missing numbers")
    ends = restore(torch.tensor([LEVELS[0], LEVELS[-1]]), torch.tensor([255]))
    reach = ends.abs().min().item()
    power = torch.log2(ROOM * top / reach).ceil()
    return power.clamp(LEAST, -LEAST).to(torch.int32)


def search(
    exponent: Tensor, block: Tensor, weight: Tensor | None = None, around: range = AROUND
) -> Levels:
    """The byte of least weighted squared error for block [n, 32]; weight [32] or None: equal.

    Errors are those of levels before their rounding.
    """
    ends, _ = scales(torch.arange(256, device=block.device))
    largest = block.abs().amax(1, keepdim=True) * powers(-exponent)
    near = torch.searchsorted(END * ends.float(), largest.contiguous())
    best = block.new_full((len(block), 1), torch.inf)
    byte = torch.zeros_like(exponent)
    for shift in around:
        own = Levels(exponent, (near + shift).clamp(0, 255).to(torch.int32))
        error = own.errors(block)
        error = (error if weight is None else error * weight).sum(1, keepdim=True)
        better = error < best
        best = torch.where(better, error, best)
        byte = torch.where(better, own.byte, byte)
    return Levels(exponent, byte)


def convert(own: Dense, moments: Moments | None, recipe: Recipe) -> Table4:
    """As `recipe.convert`: rtn and mse search by the weights alone, rtn among fewer bytes."""
    weight = own.weight.float()
    if weight.shape[1] % UNIT:
        raise ValueError(
            f"table4: the input width must be a multiple of {UNIT}, got {weight.shape[1]}"
        )
    if recipe.method not in METHODS or recipe.integer:
        raise ValueError(
            f"table4: quant.method={recipe.method}, quant.zero_point={recipe.zero_point} are for"
            f" int4; use quant.zero_point=free and one of {', '.join(METHODS)}"
        )
    exponent = exponents(weight)
    if moments is None or not recipe.calibrated:
        around = AROUND[:: COARSE if recipe.method == "rtn" else 1]
        return alone(weight, exponent, own.splits, around)
    if recipe.asymmetric and moments.cross is not None:
        weight = toward(weight, moments.h, moments.cross, recipe.damp)
    choose = partial(_choose, exponent, recipe)
    made = gptq(weight, moments.h, GROUP, choose, recipe.damp, recipe.ordered)
    if recipe.refined:  # codes alone: bytes stay
        h = damped(moments.h, recipe.damp).float()
        for _ in range(ROUNDS):
            made = sweep(weight, h, made)
    groups = torch.cat([grid.byte for grid in made.grids], 1)
    return _packed(made.codes, groups, exponent, own.splits)


def arrive(name: str, own: Dense) -> Matrix:
    """What becomes of one matrix of a checkpoint as soon as it is read; as `quantise_all`."""
    return own if stays(own.weight.shape, name) else convert(own, None, Recipe())


def random(
    splits: Sequence[int], d_in: int, generator: torch.Generator, dtype: torch.dtype
) -> Matrix:
    """A random matrix in the format that `quantise_all` gives its shape; never held wider."""
    if stays((sum(splits), d_in)):
        return dense(splits, d_in, generator, dtype)
    return table4.table4(splits, d_in, generator)


def quantise_all(params: T) -> tuple[T, tuple[str, ...]]:
    """Every matrix of a pytree but small ones and those named in KEPT, by its weights alone, and
    their names; heads that are the embedding as in `rtn.quantise_all`.
    """
    if isinstance(params, text.Params) and params.lm_head is None:
        params = dataclasses.replace(params, lm_head=params.head)
    return replace_matrices(params, arrive), tuple(matrices(params))


def alone(weight: Tensor, exponent: Tensor, splits: tuple[int, ...], around: range) -> Table4:
    """Every group by its own weights, blocks of rows at a time."""
    codes, groups = [], []
    rows = max(1, BLOCK // weight.shape[1])
    for w, power in zip(weight.split(rows), exponent.split(rows), strict=True):
        block = w.reshape(-1, GROUP)
        spread = power.expand(-1, w.shape[1] // GROUP).reshape(-1, 1)
        grid = search(spread, block, None, around)
        codes.append(grid.codes(block).to(torch.uint8).view(w.shape))
        groups.append(grid.byte.view(len(w), -1))
    return _packed(torch.cat(codes), torch.cat(groups), exponent, splits)


def _choose(exponent: Tensor, recipe: Recipe, number: int, block: Tensor, weight: Tensor) -> Levels:
    return search(exponent, block, weight if recipe.search == "hessian" else None)


def _packed(codes: Tensor, groups: Tensor, exponent: Tensor, splits: tuple[int, ...]) -> Table4:
    own = exponent[:, 0].to(torch.int8)
    return table4.pack(codes.to(torch.uint8), groups.to(torch.uint8), own, splits)
