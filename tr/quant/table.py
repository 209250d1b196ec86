"""Weights for `formats.table4`: each group's exponent and table by search, codes by GPTQ."""

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from tr.nn.formats import table4
from tr.nn.formats.dense import Dense
from tr.nn.formats.table4 import EXPONENTS, GROUP, SHIFT, TABLES, Table4, scales, tables
from tr.quant.gptq import Rounded, damped, gptq, toward
from tr.quant.grid import LEVELS
from tr.quant.hessian import Moments
from tr.quant.recipe import ROUNDS, Recipe
from tr.quant.refine import sweep

ROOM = 1.06  # over a row's largest weight, for what carried errors add
QUANTILE_OF = 2**22  # groups, at most
AROUND = (-3, 6)  # exponents tried about that of a group's largest weight
FINEST = 1 / 16  # octaves between exponents at least


@dataclass(frozen=True)
class Levels:
    """Groups of 32 inputs by row: row [n, 1] bfloat16, octaves [] fp32, exponent and table
    number [n, 1] int64.
    """

    row: Tensor
    octaves: Tensor
    exponent: Tensor
    which: Tensor

    def codes(self, w: Tensor) -> Tensor:
        first = tables(w.device)[0]
        x = w / scales(self.row, self.octaves, self.exponent)
        code = torch.bucketize(x * self.sign - self.shift, (first[1:] + first[:-1]) / 2)
        return self._turned(code).float()

    def values(self, codes: Tensor) -> Tensor:
        level = (tables(codes.device)[0][self._turned(codes.long())] + self.shift) * self.sign
        return (level * scales(self.row, self.octaves, self.exponent)).bfloat16().float()

    @property
    def sign(self) -> Tensor:
        return 1 - 2 * (self.which // 2)

    @property
    def shift(self) -> Tensor:
        return self.which % 2 * (SHIFT / 128)

    def _turned(self, codes: Tensor) -> Tensor:
        """Codes of the negative tables as those of the others, and back."""
        return torch.where(self.which >= 2, LEVELS - 1 - codes, codes)


def spread(weight: Tensor) -> tuple[Tensor, Tensor]:
    """The scale of exponent 0 by row [n, 1] bfloat16, and the step between exponents [] fp32: fine
    enough for 16 of them to reach the smallest of all but one group in 200.
    """
    largest = weight.unflatten(1, (-1, GROUP)).abs().amax(-1)  # [n, groups]
    top = largest.amax(1, keepdim=True)
    whole = top[:, 0] > 0
    row = torch.where(top > 0, ROOM * top, 1.0).bfloat16()
    if not whole.any():
        return row, torch.tensor(FINEST, device=weight.device)
    below = torch.log2(row[whole].float() / largest[whole].clamp_min(1e-3 * top[whole]))
    reach = torch.quantile(below.flatten()[:QUANTILE_OF], 0.995)
    return row, (reach / (EXPONENTS - 2)).clamp_min(FINEST)


def search(row: Tensor, octaves: Tensor, block: Tensor, weight: Tensor | None = None) -> Levels:
    """The exponent and table of least weighted squared error for block [n, 32]."""
    largest = block.abs().amax(1, keepdim=True).clamp_min(torch.finfo(torch.float32).tiny)
    near = (torch.log2(row.float() / largest) / octaves).round().long()
    best = block.new_full((len(block), 1), torch.inf)
    exponent, which = torch.zeros_like(near), torch.zeros_like(near)
    for shift in range(*AROUND):
        for t in range(TABLES):
            e = (near + shift).clamp(0, EXPONENTS - 1)
            levels = Levels(row, octaves, e, torch.full_like(which, t))
            error = (block - levels.values(levels.codes(block))).square()
            error = error if weight is None else error * weight
            error = error.sum(1, keepdim=True)
            better = error < best
            best = torch.where(better, error, best)
            exponent = torch.where(better, e, exponent)
            which = torch.where(better, levels.which, which)
    return Levels(row, octaves, exponent, which)


def convert(dense: Dense, moments: Moments | None, recipe: Recipe) -> Table4:
    """As `recipe.convert`: rtn and mse search by the weights alone."""
    weight = dense.weight.float()
    row, octaves = spread(weight)
    if moments is None or not recipe.calibrated:
        parts = weight.split(GROUP, 1)
        grids = [search(row, octaves, part) for part in parts]
        codes = [g.codes(part) for g, part in zip(grids, parts, strict=True)]
        return packed(Rounded(torch.cat(codes, 1), grids), dense.splits)
    if recipe.asymmetric and moments.cross is not None:
        weight = toward(weight, moments.h, moments.cross, recipe.damp)
    choose = partial(_choose, row, octaves, recipe)
    made = gptq(weight, moments.h, GROUP, choose, recipe.damp, recipe.ordered)
    if recipe.refined:  # codes alone: exponents stay
        h = damped(moments.h, recipe.damp).float()
        for _ in range(ROUNDS):
            made = sweep(weight, h, made)
    return packed(made, dense.splits)


def _choose(
    row: Tensor, octaves: Tensor, recipe: Recipe, number: int, block: Tensor, weight: Tensor
) -> Levels:
    return search(row, octaves, block, weight if recipe.search == "hessian" else None)


def packed(rounded: Rounded[Levels], splits: tuple[int, ...]) -> Table4:
    exponent = torch.cat([g.exponent for g in rounded.grids], 1)
    which = torch.cat([g.which for g in rounded.grids], 1)
    one = rounded.grids[0]
    return table4.pack(rounded.codes, exponent, which, one.row[:, 0], one.octaves, splits)
