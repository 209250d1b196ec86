"""A dense weight matrix, or several stacked by rows that read the same input."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor

from kernels.registry import Ops
from tr.nn.formats.unfused import Unfused
from tr.tree import static, tree

BLOCK = 2**25  # numbers drawn at once: 128 MiB of fp32


@tree
class Dense(Unfused):
    """`weight` stacks matrices of `splits` rows each (q, k and v, say)."""

    weight: Float[Tensor, "out in"]
    splits: tuple[int, ...] = static()

    @property
    def device(self) -> torch.device:
        return self.weight.device

    def sequence(
        self, x: Float[Tensor, "... in"], ops: Ops | None = None
    ) -> Float[Tensor, "... out"]:
        """Many tokens, any leading axes: one library matmul per stacked matrix, in x's dtype.

        A weight held wider for the few-rows path is rounded back. Without `ops` differentiable.
        """
        parts = self.weight.to(x.dtype).split(self.splits)
        if ops is None or not x.is_cuda:
            return torch.cat([F.linear(x, w) for w in parts], -1)
        flat = x.reshape(-1, x.shape[-1])
        y = x.new_empty(len(flat), self.weight.shape[0])
        for w, out in zip(parts, y.split(self.splits, 1), strict=True):
            torch.mm(flat, w.t(), out=out)
        return y.unflatten(0, x.shape[:-1])

    def after(self, index: int) -> "Dense":
        """The stacked matrices from number `index` on, as one: a view."""
        rest = self.weight[sum(self.splits[:index]) :]
        return Dense(weight=rest, splits=(rest.shape[0],))

    def first(self, n: int) -> "Dense":
        """The first n rows as one matrix: a view."""
        return Dense(weight=self.weight[:n], splits=(n,))

    def take(self, rows: Int64[Tensor, " taken"]) -> "Dense":
        """Chosen rows in this order, as one matrix."""
        return Dense(weight=self.weight.index_select(0, rows), splits=(len(rows),))

    def step(self, x: Float[Tensor, "rows in"], ops: Ops) -> Float[Tensor, "rows out"]:
        """A few rows through the operator `matmul`."""
        return ops.matmul(x, self.weight, list(self.splits))


def dense(
    splits: Sequence[int], d_in: int, generator: torch.Generator, dtype: torch.dtype
) -> Dense:
    """Random weights of standard deviation d_in ** -0.5, on the generator's device."""
    shape = (sum(splits), d_in)
    return Dense(weight=normal(shape, d_in**-0.5, generator, dtype), splits=tuple(splits))


def normal(
    shape: tuple[int, int], deviation: float, generator: torch.Generator, dtype: torch.dtype
) -> Float[Tensor, "rows columns"]:
    """Normal numbers drawn in fp32, a block of rows at a time, and rounded to `dtype`."""
    out = torch.empty(shape, dtype=dtype, device=generator.device)
    for rows in out.split(16 * max(1, BLOCK // (16 * shape[1]))):
        drawn = torch.randn(rows.shape, generator=generator, device=out.device)
        rows.copy_(drawn.mul_(deviation))
    return out
