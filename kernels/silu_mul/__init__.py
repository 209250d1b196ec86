"""SwiGLU's middle: y = silu(gate) * up of gate_up [rows, 2 d] = [gate | up]; silu is rounded."""

from kernels.silu_mul.reference import silu_mul as reference
from kernels.silu_mul.tile import silu_mul as tile

__all__ = ["reference", "tile"]
