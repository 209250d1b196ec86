"""The feed-forward's width."""

from typing import Any

from torch import Tensor

from tr.bench import Bench, Draw, Sizes, Widths


def cases(c: Widths) -> dict[str, Sizes]:
    return {"d_ff": {"d": c.d_ff}}


def inputs(draw: Draw, rows: int, d: int) -> list[Any]:
    return [draw(rows, 2 * d)]


def nbytes(gate_up: Tensor) -> int:
    return gate_up.nbytes * 3 // 2


BENCH = (Bench("silu_mul", cases, inputs, nbytes),)
