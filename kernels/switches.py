"""What a step does beyond its operators' maths, and how to leave it out: one function a switch.

A record of an experiment tells what each is worth; a run takes them from the config group kernel.
"""

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any

from torch import Tensor

from kernels.gpu import Launching, launching
from kernels.int4_matmul.layout import ROWS
from kernels.registry import Ops


def launched(ops: Ops, how: Launching) -> Ops:
    """`ops` whose kernels are launched as `how` says; a compiler would not see it."""

    def around(call: Callable[..., Any]) -> Callable[..., Any]:
        def within(*args: Any) -> Any:
            with launching(how):
                return call(*args)

        return within

    return Ops(**{f.name: around(getattr(ops, f.name)) for f in fields(Ops)})


def separated(ops: Ops, names: Sequence[str]) -> Ops:
    """`ops` in which the fused operators of these names are made of plainer ones.

    They take norms left to their reader as the fused ones do, and leave none: in place of sums and
    squares they give None.
    """

    def whole(x: Tensor, squares: Tensor | None) -> Tensor:
        return x if squares is None else ops.unfold_norm(x, squares)

    def beside(
        x: Tensor,
        tiles: Tensor,
        splits: list[int],
        weight: Tensor,
        weight_splits: list[int],
        sums: Tensor | None = None,
        squares: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        z = ops.matmul(whole(x, squares), weight, weight_splits)
        return ops.int4_matmul(x, tiles, splits, sums, squares), z

    def gate_up(
        x: Tensor, tiles: Tensor, sums: Tensor | None = None, squares: Tensor | None = None
    ) -> tuple[Tensor, None]:
        n = tiles.shape[0] * ROWS
        return ops.silu_mul(ops.int4_matmul(x, tiles, [n], sums, squares)), None

    def add_norm(
        x: Tensor,
        tiles: Tensor,
        residual: Tensor,
        gain: Tensor,
        eps: float,
        sums: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, None, None]:
        delta = ops.int4_matmul(x, tiles, [residual.shape[1]], sums)
        return *ops.add_rms_norm(residual, delta, gain, eps), None, None

    apart = {"int4_matmul_beside": beside, "int4_gate_up": gate_up, "int4_add_norm": add_norm}
    return replace(ops, **{name: apart[name] for name in names})
