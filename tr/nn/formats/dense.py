"""A dense weight matrix, or several stacked by rows that read the same input."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from kernels.registry import Ops
from tr.tree import static, tree


@tree
class Dense:
    """`weight` stacks matrices of `splits` rows each (q, k and v, say)."""

    weight: Float[Tensor, "out in"]
    splits: tuple[int, ...] = static()

    def sequence(self, x: Float[Tensor, "... in"]) -> Float[Tensor, "... out"]:
        """Many tokens, any leading axes, differentiable: one library matmul per stacked matrix.

        In x's dtype: a weight held wider for the few-rows path is rounded back.
        """
        parts = self.weight.to(x.dtype).split(self.splits)
        return torch.cat([F.linear(x, w) for w in parts], -1)

    def step(self, x: Float[Tensor, "rows in"], ops: Ops) -> Float[Tensor, "rows out"]:
        """A few rows through the operator `matmul`."""
        return ops.matmul(x, self.weight, list(self.splits))


def dense(
    splits: Sequence[int], d_in: int, generator: torch.Generator, dtype: torch.dtype
) -> Dense:
    """Random weights of standard deviation d_in ** -0.5, on the generator's device."""
    shape = (sum(splits), d_in)
    w = torch.randn(shape, generator=generator, device=generator.device) * d_in**-0.5
    return Dense(weight=w.to(dtype), splits=tuple(splits))
