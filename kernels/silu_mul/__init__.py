"""SwiGLU's middle: y = silu(gate) * up of gate_up [rows, 2 d] = [gate | up]; silu is rounded."""

from kernels.gpu import HAS_TRITON
from kernels.silu_mul.reference import silu_mul as reference
from kernels.silu_mul.tile import silu_mul as tile

if HAS_TRITON:
    from kernels.silu_mul import triton as _triton  # noqa: F401  (registers the variant)

__all__ = ["reference", "tile"]
