"""Which variant of which operator runs: `select` turns a choice by name into callables."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from difflib import get_close_matches
from importlib.util import find_spec

import torch
from torch import Tensor

from kernels import (  # noqa: F401  (importing an operator registers its variants)
    accept,
    attention_decode,
    attention_prefill,
    dflash_attention,
    dflash_conv,
    dflash_select,
    embed_norm,
    gated_delta_absorb,
    gated_delta_chunk,
    gated_delta_step,
    int4_matmul,
    int4_restore,
    kv_restore,
    kvarn_attention,
    kvarn_pack,
    kvarn_store,
    matmul,
    penalize,
    qk_rope_store,
    quantise_rows,
    rms_norm,
    sample,
    silu_mul,
    table4_matmul,
    table4_restore,
)
from kernels.define import VARIANTS, Target, refusal

TensorOp = Callable[..., Tensor]
PairOp = Callable[..., tuple[Tensor, Tensor]]
Sizes = Mapping[str, Sequence[Mapping[str, int]]]  # operator -> sizes it will be called with

BEST_FIRST = {  # what `auto` tries, and what stands in where an operator lacks a chosen variant
    "cuda": ("gluon", "triton", "tile", "reference"),
    "cpu": ("tile", "reference"),  # Triton's interpreter is for tests
}
FAST = ("triton", "gluon")  # written to be fast: an operator without one is worth a warning


@dataclass(frozen=True)
class Ops:
    """One callable per operator; what a step runs. Field names are the operators' names."""

    matmul: TensorOp
    int4_matmul: TensorOp
    int4_matmul_beside: PairOp
    int4_add_norm: Callable[..., tuple[Tensor, Tensor, Tensor, Tensor]]
    int4_gate_up: PairOp
    int4_restore: Callable[..., None]
    table4_matmul: TensorOp
    table4_restore: Callable[..., None]
    quantise_rows: PairOp
    rms_norm: TensorOp
    rms_norm_plain: TensorOp
    add_rms_norm: PairOp
    unfold_norm: TensorOp
    embed_norm: Callable[..., tuple[Tensor, Tensor, Tensor, Tensor]]
    silu_mul: TensorOp
    gated_delta_step: TensorOp
    gated_delta_absorb: Callable[..., None]
    gated_delta_chunk: TensorOp
    qk_rope_store: PairOp
    attention_decode: TensorOp
    attention_prefill: TensorOp
    kv_restore: Callable[..., None]
    kvarn_store: PairOp
    kvarn_pack: Callable[..., None]
    kvarn_attention: TensorOp
    penalize: TensorOp
    sample: TensorOp
    accept: TensorOp
    dflash_embed: Callable[..., tuple[Tensor, Tensor, Tensor, Tensor]]
    dflash_conv: PairOp
    dflash_conv_add_norm: Callable[..., tuple[Tensor, Tensor, Tensor, Tensor]]
    dflash_attention: TensorOp
    dflash_top: PairOp
    dflash_select: TensorOp


def select(
    choice: str = "auto",
    overrides: Mapping[str, str] | None = None,
    device: torch.device | Target | None = None,
    sizes: Sizes | None = None,
) -> Ops:
    """The operators of `choice` (auto, reference, tile, triton), some replaced by name.

    `auto` is the best variant that `device` (default: the CPU) and `sizes` allow. An operator that
    lacks the chosen variant runs the best of the plainer ones. A variant that was asked for and
    cannot run is refused by the name of one that can.
    """
    names = choose(choice, overrides, device, sizes)
    return Ops(**{name: VARIANTS[name][variant] for name, variant in names.items()})


def choose(
    choice: str = "auto",
    overrides: Mapping[str, str] | None = None,
    device: torch.device | Target | None = None,
    sizes: Sizes | None = None,
) -> dict[str, str]:
    """What `select` picks: operator -> variant."""
    overrides = dict(overrides or {})
    names = [f.name for f in fields(Ops)]
    for name in overrides:
        if name not in names:
            near = get_close_matches(name, names, 1) or names
            raise ValueError(f"kernel: unknown operator {name!r}; nearest: {near[0]}")
    known = sorted({v for table in VARIANTS.values() for v in table})
    if choice not in ("auto", *known):
        raise ValueError(
            f"kernel: unknown variant {choice!r}; known: auto, {', '.join(known)}{_missing(choice)}"
        )
    target = _target(device)
    picked = {}
    for name in names:
        shapes = (sizes or {}).get(name, ())
        if name in overrides:
            picked[name] = _named(name, overrides[name], target, shapes, f"kernel.{name}")
        elif choice in VARIANTS[name] and not _gives_way(name, choice, target, shapes):
            picked[name] = _named(name, choice, target, shapes, "kernel.variant")
        else:
            picked[name] = _best(name, target, shapes, choice)
    return picked


def fallbacks(
    choice: str = "auto",
    overrides: Mapping[str, str] | None = None,
    device: torch.device | Target | None = None,
    sizes: Sizes | None = None,
) -> tuple[str, ...]:
    """A sentence for each operator of `choose` that runs a plainer variant than it might.

    Under `auto`, where a variant for this kind of device is refused, unless a fast one stands in
    for another fast one that other cards have; under a fast variant's name, where an operator
    lacks it.
    """
    target, said = _target(device), []
    for name, variant in choose(choice, overrides, device, sizes).items():
        if name in (overrides or {}) or variant == choice:
            continue
        shapes = (sizes or {}).get(name, ())
        if choice in FAST and not _gives_way(name, choice, target, shapes):
            said.append(f"kernel={choice}: {name} has no such variant; {variant} runs")
        order = BEST_FIRST.get(target.type, BEST_FIRST["cpu"]) if choice == "auto" else ()
        for better in order[: order.index(variant)] if order else ():
            support = getattr(VARIANTS[name].get(better), "support", None)
            if support is None or target.type not in support.devices:
                continue
            if _gives_way(name, better, target, shapes):
                continue
            if variant not in FAST or support.capability <= target.capability < support.below:
                reason = refusal(name, better, target, shapes)
                said.append(f"kernel.{name}={better} {reason}; {variant} runs")
    return tuple(said)


def _gives_way(
    operator: str, variant: str, target: Target, sizes: Sequence[Mapping[str, int]]
) -> bool:
    """Whether a variant for narrow caches alone leaves its place, unasked, to the next one."""
    call = VARIANTS[operator].get(variant)
    narrow = getattr(getattr(call, "support", None), "narrow", False)
    return narrow and bool(refusal(operator, variant, target, sizes))


def _target(device: torch.device | Target | None) -> Target:
    return device if isinstance(device, Target) else Target.of(device or torch.device("cpu"))


def _named(
    operator: str, variant: str, target: Target, sizes: Sequence[Mapping[str, int]], key: str
) -> str:
    table = VARIANTS[operator]
    if variant not in table:
        raise ValueError(
            f"{key}: no variant {variant!r}; it has {', '.join(sorted(table))}{_missing(variant)}"
        )
    if reason := refusal(operator, variant, target, sizes):
        best = _best(operator, target, sizes)
        raise ValueError(
            f"{key}={variant}: {operator} {reason}; use kernel.{operator}={best} or kernel=auto"
        )
    return variant


def _best(
    operator: str, target: Target, sizes: Sequence[Mapping[str, int]], below: str = "auto"
) -> str:
    """The best variant that runs, of those that are plainer than `below`."""
    order = BEST_FIRST.get(target.type, BEST_FIRST["cpu"])
    if below in order:
        order = order[order.index(below) :]
    reasons = []
    for name in order:
        if name in VARIANTS[operator]:
            reason = refusal(operator, name, target, sizes)
            if not reason:
                return name
            reasons.append(f"{name} {reason}")
    raise ValueError(f"kernel: no variant of {operator} runs here: {'; '.join(reasons)}")


def _missing(variant: str) -> str:
    if variant in FAST and not find_spec("triton"):
        return "; Triton is not installed (pip install triton, on Linux)"
    return ""
