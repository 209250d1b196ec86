"""What a calibration text says about a matrix: the second moments of its inputs.

Inputs are seen where they enter: `capture` runs a part of a model whose matrices report them.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from kernels.registry import Ops
from tr.nn.formats.dense import Dense
from tr.nn.formats.matrix import stays

T = TypeVar("T")


@dataclass
class Moments:
    """Sums over tokens, fp32 [k, k]: x x^T, and (r - x) x^T where r is the input that the
    unquantised model has in x's place.
    """

    h: Tensor
    cross: Tensor | None = None
    tokens: int = 0

    def add(self, x: Tensor, right: Tensor | None) -> None:
        """x and right [tokens, k]."""
        x = x.float()
        self.h.addmm_(x.t(), x)
        self.tokens += len(x)
        if right is not None:
            if self.cross is None:
                self.cross = torch.zeros_like(self.h)
            self.cross.addmm_((right.float() - x).t(), x)


@dataclass(frozen=True, eq=False)
class Watched(Dense):
    """A matrix that reports what it multiplies; a leaf of a pytree."""

    seen: Callable[[Tensor], None] = field(kw_only=True)

    def sequence(self, x: Tensor, ops: Ops | None = None) -> Tensor:
        self.seen(x.flatten(0, -2))
        return super().sequence(x, ops)


def matrices(unit: Any) -> dict[str, Dense]:
    """The matrices of a part of a model that become codes, by key path."""
    leaves, _ = pytree.tree_flatten_with_path(unit, is_leaf=lambda x: isinstance(x, Dense))
    named = {pytree.keystr(path).lstrip("."): leaf for path, leaf in leaves}
    return {
        name: leaf
        for name, leaf in named.items()
        if isinstance(leaf, Dense) and not stays(leaf.weight.shape, name)
    }


def replace_matrices(unit: T, change: Callable[[str, Dense], Any]) -> T:
    """The same pytree with change(name, matrix) for each of `matrices`."""
    chosen = matrices(unit)
    leaves, spec = pytree.tree_flatten_with_path(unit, is_leaf=lambda x: isinstance(x, Dense))
    names = [pytree.keystr(path).lstrip(".") for path, _ in leaves]
    out = [
        change(name, chosen[name]) if name in chosen else leaf
        for name, (_, leaf) in zip(names, leaves, strict=True)
    ]
    return pytree.tree_unflatten(out, spec)


def capture(
    unit: T, run: Callable[[T], Any], names: Collection[str] | None = None
) -> tuple[dict[str, Tensor], Any]:
    """Inputs [tokens, k] of the matrices `names` (None: all), in the order in which `run`, given
    `unit`, first multiplies them; and what it returns.
    """
    found: dict[str, Tensor] = {}

    def watch(name: str, dense: Dense) -> Dense:
        if names is not None and name not in names:
            return dense
        return Watched(weight=dense.weight, splits=dense.splits, seen=lambda x: add(name, x))

    def add(name: str, x: Tensor) -> None:
        found[name] = torch.cat([found[name], x]) if name in found else x

    result = run(replace_matrices(unit, watch))
    return found, result


def stages(unit: T, run: Callable[[T, Any], Any], chunk: Any) -> list[list[str]]:
    """Names of the matrices in the order of their use, those that read one input together."""
    found: list[list[str]] = []
    last: Tensor | None = None
    for name, x in capture(unit, lambda watched: run(watched, chunk))[0].items():
        if last is None or x.data_ptr() != last.data_ptr():
            found.append([])
        found[-1].append(name)
        last = x
    return found


def observe(
    unit: T,
    whole: T,
    names: Collection[str],
    run: Callable[[T, Any], Any],
    inputs: Sequence[Any],
    right: Sequence[Any] | None = None,
) -> tuple[dict[str, Moments], list[Any] | None]:
    """Moments of the matrices `names` of `unit` over chunks of inputs that `run` takes.

    `right`: the same chunks as the unquantised model has them, which `whole`, its part, runs; None:
    no cross moments. What it makes of them is returned too.
    """
    moments: dict[str, Moments] = {}
    outputs = None if right is None else []
    for i, chunk in enumerate(inputs):
        seen, _ = capture(unit, lambda watched, x=chunk: run(watched, x), names)
        other: dict[str, Tensor] = {}
        if right is not None and outputs is not None:
            other, out = capture(whole, lambda watched, x=right[i]: run(watched, x), names)
            outputs.append(out)
        for name, x in seen.items():
            if name not in moments:
                moments[name] = Moments(x.new_zeros(x.shape[1], x.shape[1], dtype=torch.float32))
            moments[name].add(x, other.get(name))
    return moments, outputs
