"""Every large matrix of a model at 4.25 bits a weight, and what a step fuses with it."""

from typing import Any

import torch
from torch import Tensor

from kernels.int4_matmul import layout
from kernels.int4_matmul.reference import group_sums
from kernels.matmul.bench import shapes
from kernels.rms_norm.reference import times_unit
from tr.bench import Bench, Draw, Sizes, Widths

EPS = 1e-6


def cases(c: Widths) -> dict[str, Sizes]:
    return {name: {"splits": [n], "k": k} for name, (n, k) in shapes(c).items()}


def beside_cases(c: Widths) -> dict[str, Sizes]:
    _, n, k = c.matrices["delta in_qkvz"]
    return {"delta in_qkvz and in_ba": {"splits": [n], "k": k, "beside": 2 * c.v_heads}}


def add_norm_cases(c: Widths) -> dict[str, Sizes]:
    down, out = c.matrices["mlp down"], c.matrices["delta out"]
    found = {"delta out": out, "attention out": c.matrices["attention out"], "mlp down": down}
    if found["attention out"][1:] == out[1:]:
        del found["attention out"]
    return {name: {"n": n, "k": k} for name, (_, n, k) in found.items()}


def gate_up_cases(c: Widths) -> dict[str, Sizes]:
    _, n, k = c.matrices["mlp gate_up"]
    return {"mlp gate_up": {"n": n, "k": k}}


def inputs(draw: Draw, rows: int, splits: list[int], k: int) -> list[Any]:
    return [draw(rows, k), layout.random(sum(splits), k, draw.generator), splits]


def unnormed(draw: Draw, rows: int, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """Rows whose norm is left to their reader: x, its sums by group, shares of its mean square."""
    x = draw(rows, k)
    shares = draw(rows, k // layout.GROUP, dtype=torch.float32).square_().mul_(layout.GROUP / k)
    return x, group_sums(x), shares


def beside_inputs(draw: Draw, rows: int, splits: list[int], k: int, beside: int) -> list[Any]:
    x, sums, squares = unnormed(draw, rows, k)
    tiles = layout.random(sum(splits), k, draw.generator)
    return [x, tiles, splits, draw(beside, k).mul_(k**-0.5), [beside], sums, squares]


def add_norm_inputs(draw: Draw, rows: int, n: int, k: int) -> list[Any]:
    x = draw(rows, k)
    tiles = layout.random(n, k, draw.generator)
    return [x, tiles, draw(rows, n), draw(n), EPS, group_sums(x)]


def gate_up_inputs(draw: Draw, rows: int, n: int, k: int) -> list[Any]:
    x, sums, squares = unnormed(draw, rows, k)
    return [x, layout.random(n, k, draw.generator), sums, squares]


def nbytes(x: Tensor, tiles: Tensor, splits: list[int], *shares: Tensor | None) -> int:
    """Rows with their sums and shares in, tiles, rows out."""
    out = x.shape[0] * sum(splits) * x.element_size()
    return x.nbytes + tiles.nbytes + out + sum(t.nbytes for t in shares if t is not None)


def beside_nbytes(
    x: Tensor,
    tiles: Tensor,
    splits: list[int],
    weight: Tensor,
    weight_splits: list[int],
    *shares: Tensor | None,
) -> int:
    out = x.shape[0] * weight.shape[0] * x.element_size()
    return nbytes(x, tiles, splits, *shares) + weight.nbytes + out


def add_norm_nbytes(
    x: Tensor, tiles: Tensor, residual: Tensor, gain: Tensor, eps: float, *sums: Tensor | None
) -> int:
    """Two rows of the residual's width out, with fp32 sums and shares by group."""
    rows, n = residual.shape
    shares = 2 * rows * (n // layout.GROUP) * 4
    return nbytes(x, tiles, [2 * n], *sums) + residual.nbytes + gain.nbytes + shares


def gate_up_nbytes(x: Tensor, tiles: Tensor, *shares: Tensor | None) -> int:
    half = tiles.shape[0] * layout.ROWS // 2
    return nbytes(x, tiles, [half], *shares) + x.shape[0] * (half // layout.GROUP) * 4


def added_and_normed(out: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """A variant may leave the norm's factor in the shares."""
    s, normed, _, squares = out
    return s, times_unit(normed, squares)


BENCH = (
    Bench("int4_matmul", cases, inputs, nbytes),
    Bench("int4_matmul_beside", beside_cases, beside_inputs, beside_nbytes),
    Bench("int4_add_norm", add_norm_cases, add_norm_inputs, add_norm_nbytes, added_and_normed),
    Bench("int4_gate_up", gate_up_cases, gate_up_inputs, gate_up_nbytes, lambda out: out[:1]),
)
