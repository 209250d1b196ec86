"""Table weights as numbers: weight[o, k] = 2^exponent[o] bf16(scale level + offset).

For many tokens, as int4_restore; layouts and numbers as in kernels/table4_matmul/layout.py. The sum
is exact in fp32 and a power of two changes no mantissa, so that all variants agree to the last bit.
"""

from kernels.gpu import HAS_TRITON
from kernels.table4_restore.reference import table4_restore as reference

if HAS_TRITON:
    from kernels.table4_restore import triton as _triton  # noqa: F401  (registers the variant)

__all__ = ["reference"]
