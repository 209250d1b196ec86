"""What follows a matmul as operators of their own, where the matmul ends in nothing else."""

from jaxtyping import Float
from torch import Tensor

from kernels.registry import Ops
from tr.nn.formats.operand import Operand


class Unfused:
    """A format's methods for a few rows, all over its `step`."""

    def step(self, x: Float[Tensor, "rows in"], ops: Ops) -> Float[Tensor, "rows out"]:
        """A few plain rows."""
        raise NotImplementedError

    def project(self, y: Operand, ops: Ops) -> Float[Tensor, "rows out"]:
        """A few rows as their producer left them."""
        return self.step(y.whole(ops), ops)

    def project_beside(
        self, y: Operand, beside: "Unfused", ops: Ops
    ) -> tuple[Float[Tensor, "rows out"], Float[Tensor, "rows beside"]]:
        """This matrix and another one that reads the same rows."""
        x = y.whole(ops)
        return self.step(x, ops), beside.step(x, ops)

    def gate_up(self, y: Operand, ops: Ops) -> Operand:
        """silu(gate) * up of the stacked [gate | up]."""
        return Operand(x=ops.silu_mul(self.project(y, ops)))

    def add_norm(
        self,
        y: Operand,
        residual: Float[Tensor, "rows out"],
        gain: Float[Tensor, " out"],
        eps: float,
        ops: Ops,
    ) -> tuple[Float[Tensor, "rows out"], Operand]:
        """s = residual + W y, and the norm of s with gain 1 + gain."""
        s, normed = ops.add_rms_norm(residual, self.project(y, ops), gain, eps)
        return s, Operand(x=normed)
