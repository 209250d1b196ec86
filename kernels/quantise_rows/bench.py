"""Rows of the residual stream and of the feed-forward."""

from typing import Any

import torch
from torch import Tensor

from tr.bench import Bench, Draw, Sizes, Widths


def cases(c: Widths) -> dict[str, Sizes]:
    formats = {"int8": torch.int8, "fp8": torch.float8_e4m3fn}
    widths = {"d_model": c.d_model, "d_ff": c.d_ff}
    return {
        f"{width} {name}": {"d": d, "dtype": dtype}
        for width, d in widths.items()
        for name, dtype in formats.items()
    }


def inputs(draw: Draw, rows: int, d: int, dtype: torch.dtype) -> list[Any]:
    return [draw(rows, d), dtype]


def nbytes(x: Tensor, dtype: torch.dtype) -> int:
    return x.nbytes + x.numel() + 4 * x.shape[0]


def restored(out: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The numbers that codes and scale stand for."""
    codes, scale = out
    return (codes.to(scale.dtype) * scale[:, None],)


BENCH = (Bench("quantise_rows", cases, inputs, nbytes, restored),)
