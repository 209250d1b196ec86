"""Which variant of which operator runs: `select` turns a choice by name into callables."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches

from torch import Tensor

from kernels import (  # noqa: F401  (importing an operator registers its variants)
    attention_decode,
    gated_delta_step,
    matmul,
    qk_rope_store,
    rms_norm,
    sample,
    silu_mul,
)
from kernels.define import VARIANTS

TensorOp = Callable[..., Tensor]
PairOp = Callable[..., tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Ops:
    """One callable per operator; what a step runs. Field names are the operators' names."""

    matmul: TensorOp
    rms_norm: TensorOp
    rms_norm_plain: TensorOp
    add_rms_norm: PairOp
    silu_mul: TensorOp
    gated_delta_step: TensorOp
    qk_rope_store: PairOp
    attention_decode: TensorOp
    sample: TensorOp


def select(choice: str = "auto", overrides: Mapping[str, str] | None = None) -> Ops:
    """The operators of `choice` (auto, reference, tile), some replaced by name.

    `auto` is `tile`. An operator without a `tile` variant has a reference whose rows are
    independent already, and that one runs.
    """
    overrides = dict(overrides or {})
    names = [f.name for f in fields(Ops)]
    for name in overrides:
        if name not in names:
            near = get_close_matches(name, names, 1) or names
            raise ValueError(f"kernel: unknown operator {name!r}; nearest: {near[0]}")
    wanted = "tile" if choice == "auto" else choice
    known = sorted({v for table in VARIANTS.values() for v in table})
    if wanted not in known:
        raise ValueError(f"kernel: unknown variant {choice!r}; known: auto, {', '.join(known)}")
    picked = {}
    for name in names:
        table = VARIANTS[name]
        if name in overrides and overrides[name] not in table:
            raise ValueError(
                f"kernel.{name}: no variant {overrides[name]!r}; it has {', '.join(sorted(table))}"
            )
        picked[name] = table[overrides.get(name, wanted if wanted in table else "reference")]
    return Ops(**picked)
