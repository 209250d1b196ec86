"""How a variant of an operator is declared: a function, a `torch.library` op, a table entry."""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch

FLOAT8 = (8, 9)  # the least compute capability that converts float8
MAX_ROWS = 16  # rows that a few-rows operator takes: an anchor and 15 drafts

F = TypeVar("F", bound=Callable[..., Any])

#: operator name -> variant name -> callable; filled by importing the operators' modules.
VARIANTS: dict[str, dict[str, Callable[..., Any]]] = {}


@dataclass(frozen=True)
class Target:
    """What variants run on: a device type and, on CUDA, its compute capability."""

    type: str = "cpu"
    capability: tuple[int, int] = (0, 0)

    @staticmethod
    def of(device: torch.device) -> "Target":
        if device.type != "cuda":
            return Target(device.type)
        return Target(device.type, torch.cuda.get_device_capability(device))

    def __str__(self) -> str:
        return (
            f"{self.type} {'.'.join(map(str, self.capability))}"
            if any(self.capability)
            else self.type
        )


@dataclass(frozen=True)
class Support:
    """Where a variant runs, and with which sizes: by name (k, d_head), as callers state them."""

    devices: Sequence[str] = ("cpu", "cuda")
    capability: tuple[int, int] = (0, 0)  # the least, on CUDA
    below: tuple[int, int] = (1 << 30, 0)  # the least that it no longer runs on
    multiples: Mapping[str, int] = field(default_factory=dict)  # what must divide a size
    powers: Mapping[str, int] = field(default_factory=dict)  # a power of two, at least this one
    most: Mapping[str, int] = field(default_factory=dict)
    float8: tuple[int, int] = (0, 0)  # the least capability where the size `float8` is not 0
    narrow: bool = False  # for caches of 8 or 4 bits alone, which have the size `narrow d_head`

    def refusal(self, target: Target, sizes: Mapping[str, int] | None = None) -> str:
        """Why the variant cannot run, or an empty string."""
        if target.type not in self.devices:
            return f"needs {' or '.join(self.devices)}, this is {target}"
        sizes = sizes or {}
        least, why = self.capability, ""
        if sizes.get("float8") and self.float8 > least:
            least, why = self.float8, " for a float8 cache"
        if target.type == "cuda" and target.capability < least:
            return f"needs compute capability {least[0]}.{least[1]}{why}, this is {target}"
        if target.type == "cuda" and target.capability >= self.below:
            most = ".".join(map(str, self.below))
            return f"is for compute capabilities below {most}, this is {target}"
        if self.narrow and "narrow d_head" not in sizes:
            return "is for caches of 8 or 4 bits"
        for name, size in sizes.items():
            if size % self.multiples.get(name, 1):
                return f"needs {name} to be a multiple of {self.multiples[name]}, got {size}"
            if name in self.powers and (size & (size - 1) or size < self.powers[name]):
                return f"needs {name} to be a power of two from {self.powers[name]} on, got {size}"
            if size > self.most.get(name, size):
                return f"takes {name} up to {self.most[name]}, got {size}"
        return ""


EVERYWHERE = Support()


def variant(
    operator: str,
    name: str,
    fake: Callable[..., Any],
    mutates: Sequence[str] = (),
    support: Support = EVERYWHERE,
) -> Callable[[F], F]:
    """Register `fn` as variant `name` of `operator`, with its exact mutation set.

    The result calls `fn` directly in eager mode and the opaque op `tr::<operator>_<name>` under
    torch.compile, so that a compiler sees neither reductions nor transcendentals: on a CPU it
    would fuse them differently for one row and for eight. The op itself is at `.op`, what the
    variant supports at `.support`.
    """

    def register(fn: F) -> F:
        op = torch.library.custom_op(f"tr::{operator}_{name}", fn, mutates_args=tuple(mutates))
        op.register_fake(fake)

        @functools.wraps(fn)
        def call(*args: Any) -> Any:
            return op(*args) if torch.compiler.is_compiling() else fn(*args)

        call.op = op  # type: ignore[attr-defined]
        call.support = support  # type: ignore[attr-defined]
        VARIANTS.setdefault(operator, {})[name] = call
        return call  # type: ignore[return-value]

    return register


def refusal(
    operator: str, name: str, target: Target, sizes: Sequence[Mapping[str, int]] = ()
) -> str:
    """Why variant `name` of `operator` cannot run on `target` at one of `sizes`, or ""."""
    support: Support = VARIANTS[operator][name].support  # type: ignore[attr-defined]
    return next(filter(None, (support.refusal(target, s) for s in sizes or ({},))), "")
