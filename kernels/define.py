"""How a variant of an operator is declared: a function, a `torch.library` op, a table entry."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch

F = TypeVar("F", bound=Callable[..., Any])

#: operator name -> variant name -> callable; filled by importing the operators' modules.
VARIANTS: dict[str, dict[str, Callable[..., Any]]] = {}


def variant(
    operator: str, name: str, fake: Callable[..., Any], mutates: Sequence[str] = ()
) -> Callable[[F], F]:
    """Register `fn` as variant `name` of `operator`, with its exact mutation set.

    The result calls `fn` directly in eager mode and the opaque op `tr::<operator>_<name>` under
    torch.compile, so that a compiler sees neither reductions nor transcendentals: on a CPU it
    would fuse them differently for one row and for eight. The op itself is at `.op`.
    """

    def register(fn: F) -> F:
        op = torch.library.custom_op(f"tr::{operator}_{name}", fn, mutates_args=tuple(mutates))
        op.register_fake(fake)

        @functools.wraps(fn)
        def call(*args: Any) -> Any:
            return op(*args) if torch.compiler.is_compiling() else fn(*args)

        call.op = op  # type: ignore[attr-defined]
        VARIANTS.setdefault(operator, {})[name] = call
        return call  # type: ignore[return-value]

    return register
