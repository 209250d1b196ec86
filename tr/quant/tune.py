"""Learned from the whole model: scales, minimums and norms that bring its next-token laws nearest
to those of the unquantised one.

The loss is the mean KL divergence over calibration tokens. Every number is rounded as it will be
stored and read, and gradients pass the roundings as if they were not there. Codes stay; what stays
in bfloat16 (norms, convolutions, gates) moves with the grids.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils import _pytree as pytree

from kernels.int4_matmul.layout import GROUP
from tr.model import text
from tr.nn.formats import int4
from tr.nn.formats.dense import Dense
from tr.nn.formats.int4 import Int4
from tr.quant.numbers import numbers
from tr.tree import map_tensors, unchecked

FROZEN = ("embed", "rope")  # what stays as it is


@dataclass(frozen=True)
class Settings:
    """Rates are relative for scales, in steps of the grid for minimums, absolute for the rest."""

    steps: int = 80
    batch: int = 4  # sequences a step
    grid_rate: float = 0.0007
    other_rate: float = 0.0001
    warmup: int = 10
    clip: float = 1.0
    seed: int = 0


class Round(torch.autograd.Function):
    """A rounding that gradients pass unchanged."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, how: Callable[[Tensor], Tensor]) -> Tensor:  # type: ignore[override]
        return how(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return grad, None


def stored(x: Tensor) -> Tensor:
    """x as bfloat16 holds it."""
    return Round.apply(x, lambda t: t.bfloat16().float())


class Learned:
    """One matrix on its way: its codes, scale and minimum relative to where they started."""

    def __init__(self, own: Int4) -> None:
        codes, scale, minimum = int4.unpack(own)
        self.splits = own.splits
        self.codes = codes.float().unflatten(1, (-1, GROUP))
        self.scale = scale.float()[..., None].clone()  # [n, groups, 1]
        self.minimum = minimum.float()[..., None].clone()
        self.factor = torch.zeros_like(self.scale, requires_grad=True)
        self.shift = torch.zeros_like(self.minimum, requires_grad=True)

    def grid(self) -> tuple[Tensor, Tensor]:
        scale = stored(self.scale * (1 + self.factor))
        return scale, stored(self.minimum + self.scale * self.shift)

    def dense(self) -> Dense:
        scale, minimum = self.grid()
        weight = stored(self.codes * scale + minimum).flatten(1)
        return Dense(weight=weight, splits=self.splits)

    @torch.no_grad()
    def finish(self) -> Int4:
        scale, minimum = (t[..., 0].bfloat16() for t in self.grid())
        return int4.pack(self.codes.flatten(1).to(torch.uint8), scale, minimum, self.splits)


class Student:
    """A quantised model on its way: its matrices, and fp32 copies of what stays in bfloat16."""

    def __init__(self, start: text.Params) -> None:
        leaves, self.spec = pytree.tree_flatten_with_path(start, is_leaf=_coded)
        self.matrices: dict[str, Learned] = {}
        self.others: dict[str, Tensor] = {}
        self.values: list[tuple[str, Any]] = []
        for path, leaf in leaves:
            name = pytree.keystr(path).lstrip(".")
            self.values.append((name, leaf))
            if isinstance(leaf, Int4):
                self.matrices[name] = Learned(leaf)
            elif isinstance(leaf, Tensor) and not name.startswith(FROZEN):
                self.others[name] = leaf.detach().float().clone().requires_grad_()

    def view(self) -> text.Params:
        """The model as it would be stored now, in fp32, differentiable."""

        def now(name: str, leaf: Any) -> Any:
            if name in self.matrices:
                return self.matrices[name].dense()
            if name in self.others:
                return stored(self.others[name])
            return leaf.float() if isinstance(leaf, Tensor) else leaf

        return pytree.tree_unflatten([now(*value) for value in self.values], self.spec)

    def finish(self) -> text.Params:
        def now(name: str, leaf: Any) -> Any:
            if name in self.matrices:
                return self.matrices[name].finish()
            if name in self.others:
                return self.others[name].detach().to(leaf.dtype)
            return leaf

        return pytree.tree_unflatten([now(*value) for value in self.values], self.spec)

    def groups(self, s: Settings) -> list[dict[str, Any]]:
        """What an optimizer takes: tensors by rate."""
        own = self.matrices.values()
        grids = [t for m in own for t in (m.factor, m.shift)]
        rates = ((grids, s.grid_rate), ([*self.others.values()], s.other_rate))
        return [{"params": part, "lr": rate, "most": rate} for part, rate in rates]


def _coded(x: Any) -> bool:
    return isinstance(x, Int4)


def logits(params: text.Params, tokens: Tensor) -> Tensor:
    """[sequences, n, vocab] in the params' dtype."""
    past = text.init_past(params, len(tokens))
    return params.head.sequence(text.sequence(params, past, tokens, (), "train")[0])


def divergence(student: Tensor, teacher: Tensor) -> Tensor:
    """Mean over rows of KL(teacher | student), both logits [..., vocab]."""
    a, b = (t.flatten(0, -2).log_softmax(-1) for t in (student, teacher))
    return F.kl_div(a, b, reduction="batchmean", log_target=True)


def tune(
    whole: text.Params,
    start: text.Params,
    tokens: Tensor,
    settings: Settings,
    report: Callable[[int, float], None] = lambda step, loss: None,
) -> text.Params:
    """`start`, the quantised form of `whole`, with what was learned on tokens [sequences, n].

    `report`(step, loss) after each step. In fp32; deterministic by the seed.
    """
    s = settings
    with torch.inference_mode(False), torch.enable_grad(), unchecked():
        student = Student(start)
        teacher = map_tensors(torch.clone, numbers(whole, torch.float32))
        optimizer = torch.optim.Adam(student.groups(s), betas=(0.9, 0.99), eps=1e-12)
        generator = torch.Generator().manual_seed(s.seed)
        order: list[int] = []
        for step in range(s.steps):
            while len(order) < s.batch:
                order += torch.randperm(len(tokens), generator=generator).tolist()
            chosen, order = order[: s.batch], order[s.batch :]
            part = tokens[chosen].clone()
            with torch.no_grad():
                right = logits(teacher, part)
            loss = divergence(logits(student.view(), part), right)
            loss.backward()
            rate = min((step + 1) / s.warmup, 1.0) * 0.5 * (1 + math.cos(math.pi * step / s.steps))
            for group in optimizer.param_groups:
                group["lr"] = group["most"] * rate
                torch.nn.utils.clip_grad_norm_(group["params"], s.clip)
            optimizer.step()
            optimizer.zero_grad()
            report(step, loss.item())
        return student.finish()
