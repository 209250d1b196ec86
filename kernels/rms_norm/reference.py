"""The definition. It reduces along the last axis alone: the row count changes no bit."""

import torch
from torch import Tensor

from kernels.define import variant
from kernels.precision import wide


def _unit(x: Tensor, eps: float) -> Tensor:
    """x / rms(x) in fp32 (fp64 for fp64 input)."""
    xf = wide(x)
    return xf * torch.rsqrt(xf.pow(2).mean(-1, keepdim=True) + eps)


def fake(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return torch.empty_like(x)


@variant("rms_norm", "reference", fake)
def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x [..., d], weight [d] -> [..., d] in x's dtype; the gain is 1 + weight."""
    y = _unit(x, eps)
    return (y * (1.0 + weight.to(y.dtype))).to(x.dtype)


@variant("rms_norm_plain", "reference", fake)
def rms_norm_plain(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x [..., d], weight [d] -> [..., d] in x's dtype; the gain is weight."""
    return weight * _unit(x, eps).to(x.dtype)


def times_unit(x: Tensor, squares: Tensor | None) -> Tensor:
    """x [rows, d] rsqrt(sum(squares)) in x's dtype, squares [rows, parts] fp32; None: x."""
    if squares is None:
        return x
    return (wide(x) * torch.rsqrt(wide(squares).sum(-1, keepdim=True))).to(x.dtype)


def fake_unfold(x: Tensor, squares: Tensor) -> Tensor:
    return torch.empty_like(x)


@variant("unfold_norm", "reference", fake_unfold)
def unfold_norm(x: Tensor, squares: Tensor) -> Tensor:
    """Rows [rows, d] whose norm was left to their reader, normed: x rsqrt(sum(squares))."""
    return times_unit(x, squares)


def fake_add(x: Tensor, delta: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), torch.empty_like(x)


@variant("add_rms_norm", "reference", fake_add)
def add_rms_norm(x: Tensor, delta: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The residual sum s = x + delta, rounded once, and its norm with gain 1 + weight."""
    s = x + delta
    y = _unit(s, eps)
    return s, (y * (1.0 + weight.to(y.dtype))).to(s.dtype)
