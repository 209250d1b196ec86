"""The rows that a matrix reads in a decoding step, with what their producer knows of them."""

from jaxtyping import Float
from torch import Tensor

from kernels.registry import Ops
from tr.tree import tree


@tree
class Operand:
    """Rows `x`, which stand for x rsqrt(sum(squares)) where squares are given: a norm whose factor
    is left to the reader, since its producer sees a part of each row at a time.
    """

    x: Float[Tensor, "rows width"]
    sums: Float[Tensor, "rows groups"] | None = None  # of x by 128 inputs, fp32
    squares: Float[Tensor, "rows shares"] | None = None  # of mean square + eps, fp32

    def whole(self, ops: Ops) -> Float[Tensor, "rows width"]:
        """The rows that x stands for."""
        return self.x if self.squares is None else ops.unfold_norm(self.x, self.squares)
