"""Matmul of 1..16 rows by 4-bit table weights: y[r, o] = sum_k x[r, k] weight[o, k].

weight[o, k] = 2^exponent[o] bf16(scale level + offset), where `level` is one of 16 integers that
the code picks, and one byte of each 32 inputs gives scale and offset (layout.py): 4.25 bits a
weight and 8 / k. The one rounding is to bfloat16, so that what tensor cores multiply is the weight
itself. Sums are fp32 and the result is rounded once, to x's dtype.

`tiles` is the layout of kernels/int4_matmul/layout.py with group bytes for its parameters; `splits`
lists the row counts of the matrices that it stacks, of which only the sum matters here.
"""

from kernels.gpu import HAS_TRITON
from kernels.table4_matmul import layout
from kernels.table4_matmul.reference import table4_matmul as reference
from kernels.table4_matmul.tile import table4_matmul as tile

if HAS_TRITON:
    from kernels.table4_matmul import triton as _triton  # noqa: F401  (registers the variant)

__all__ = ["layout", "reference", "tile"]
