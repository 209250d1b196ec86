"""The residual stream's width."""

from typing import Any

import torch
from torch import Tensor

from tr.bench import Bench, Draw, Sizes, Widths

EPS = 1e-6


def cases(c: Widths) -> dict[str, Sizes]:
    return {"d_model": {"d": c.d_model}}


def inputs(draw: Draw, rows: int, d: int) -> list[Any]:
    return [draw(rows, d), draw(d), EPS]


def add_inputs(draw: Draw, rows: int, d: int) -> list[Any]:
    return [draw(rows, d), draw(rows, d), draw(d), EPS]


def unfold_inputs(draw: Draw, rows: int, d: int) -> list[Any]:
    shares = draw(rows, max(1, d // 128), dtype=torch.float32).square_()
    return [draw(rows, d), shares / shares.shape[1]]


def nbytes(x: Tensor, weight: Tensor, eps: float) -> int:
    return 2 * x.nbytes + weight.nbytes


def add_nbytes(x: Tensor, delta: Tensor, weight: Tensor, eps: float) -> int:
    return 3 * x.nbytes + delta.nbytes + weight.nbytes


def unfold_nbytes(x: Tensor, squares: Tensor) -> int:
    return 2 * x.nbytes + squares.nbytes


BENCH = (
    Bench("rms_norm", cases, inputs, nbytes),
    Bench("rms_norm_plain", cases, inputs, nbytes),
    Bench("add_rms_norm", cases, add_inputs, add_nbytes),
    Bench("unfold_norm", cases, unfold_inputs, unfold_nbytes),
)
