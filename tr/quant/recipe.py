"""How one matrix becomes int4: by its weights alone, or with what a calibration text says of it."""

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from kernels.int4_matmul.layout import GROUP
from tr.nn.formats import int4
from tr.nn.formats.dense import Dense
from tr.nn.formats.int4 import Int4
from tr.quant.gptq import Rounded, gptq, toward
from tr.quant.grid import Uniform, plain
from tr.quant.hessian import Moments
from tr.quant.refine import refine
from tr.quant.search import search

METHODS = ("rtn", "mse", "gptq", "gptaq", "refined", "tuned")
ROUNDS = 3  # of refinement
SEARCHES = ("none", "plain", "hessian")
ZERO_POINTS = ("free", "integer")


@dataclass(frozen=True)
class Recipe:
    """`method`: rtn and mse know the weights alone; gptq carries each rounding error on; gptaq
    does so toward the outputs of the unquantised model; refined fits codes and grids to each other
    after that (refine); tuned goes on from there (tune).

    `search`: how gptq and those after it find a group's range: none takes its ends, plain weighs
    all inputs alike, hessian by what an error of theirs costs. `damp`: of H, in mean diagonals.
    `ordered`: inputs go by decreasing power, groups whole. `zero_point`: integer makes every
    minimum an integer multiple of its scale, as other formats need it.
    """

    method: str = "rtn"
    search: str = "hessian"
    damp: float = 0.01
    ordered: bool = True
    zero_point: str = "free"

    @property
    def integer(self) -> bool:
        return self.zero_point == "integer"

    @property
    def calibrated(self) -> bool:
        return self.method not in ("rtn", "mse")

    @property
    def asymmetric(self) -> bool:
        """Whether targets come from the unquantised model's inputs."""
        return self.method not in ("rtn", "mse", "gptq")

    @property
    def refined(self) -> bool:
        return self.method in ("refined", "tuned")


def convert(dense: Dense, moments: Moments | None, recipe: Recipe) -> Int4:
    """One matrix; `moments` of its inputs where the recipe is calibrated."""
    if dense.weight.shape[1] % GROUP:
        raise ValueError(
            f"int4: a matrix has {dense.weight.shape[1]} inputs, no multiple of {GROUP}"
        )
    weight = dense.weight.float()
    if moments is None or not recipe.calibrated:
        return packed(alone(weight, recipe), dense.splits)
    if recipe.asymmetric and moments.cross is not None:
        weight = toward(weight, moments.h, moments.cross, recipe.damp)
    made = gptq(weight, moments.h, GROUP, partial(choose, recipe), recipe.damp, recipe.ordered)
    if recipe.refined:
        made = refine(weight, moments.h, made, recipe.damp, ROUNDS, recipe.integer)
    return packed(made, dense.splits)


def choose(recipe: Recipe, number: int, block: Tensor, importance: Tensor) -> Uniform:
    if recipe.search == "none":
        return plain(block, integer=recipe.integer)
    return search(block, importance if recipe.search == "hessian" else None, recipe.integer)


def alone(weight: Tensor, recipe: Recipe) -> Rounded[Uniform]:
    """Every group by its own weights."""
    make = plain if recipe.method == "rtn" else search
    parts = weight.split(GROUP, 1)
    grids = [make(part, integer=recipe.integer) for part in parts]
    codes = [grid.codes(part) for grid, part in zip(grids, parts, strict=True)]
    return Rounded(torch.cat(codes, 1), grids)


def packed(rounded: Rounded[Uniform], splits: tuple[int, ...]) -> Int4:
    """In the kernels' tiles."""
    scale = torch.cat([g.scale for g in rounded.grids], 1)
    minimum = torch.cat([g.minimum for g in rounded.grids], 1)
    return int4.pack(rounded.codes.to(torch.uint8), scale, minimum, splits)
