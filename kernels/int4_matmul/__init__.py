"""Int4 matmul of 1..16 rows: y[r, o] = sum_k x[r, k] (scale[o, g] codes[o, k] + minimum[o, g]).

Group g = k // 128; codes are 0..15, scale and minimum bfloat16: 4.25 bits per weight. Sums are
fp32 and the result is rounded once, to x's dtype. No weight is ever rounded to x's dtype: with
fp32 group terms, sum_k (codes s + m) x = s sum_k (128 + codes) x + (m - 128 s) sum_k x holds
exactly, and 128 + code is a bfloat16 number whose mantissa is the code.

`tiles` is the layout of kernels/int4_matmul/layout.py; `splits` lists the row counts of the
matrices that it stacks (q, k, v and so on), of which only the sum matters here.

What a decoding step does around its matmuls belongs to them, so that a layer is five or six
launches: `int4_matmul_beside` multiplies a small dense matrix too, `int4_gate_up` ends in SwiGLU,
`int4_add_norm` in the residual sum and the norm that follows. A program sees a part of each row, so
that norm may come in parts (reference.py): rows with their gain, shares of their mean square, and
sums by group, which the next matmul needs anyway and would otherwise take in every program.
"""

from kernels.gpu import HAS_TRITON
from kernels.int4_matmul import layout
from kernels.int4_matmul.reference import int4_matmul as reference
from kernels.int4_matmul.tile import int4_matmul as tile

if HAS_TRITON:
    from kernels.int4_matmul import gluon as _gluon  # noqa: F401  (register the variants)
    from kernels.int4_matmul import triton as _triton  # noqa: F401

__all__ = ["layout", "reference", "tile"]
