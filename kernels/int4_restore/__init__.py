"""Int4 weights as numbers: weight[o, k] = codes[o, k] scale[o, g] + minimum[o, g], rounded once.

For many tokens: their matmul reads a weight often enough for a library to be the fastest way, and
the weights pass through memory once more, a block of them at a time. Tiles as in
kernels/int4_matmul/layout.py; the product of a code and a scale is exact in fp32, so that fusing it
with the sum changes no bit and all variants agree to the last one.
"""

from kernels.gpu import HAS_TRITON
from kernels.int4_restore.reference import int4_restore as reference

if HAS_TRITON:
    from kernels.int4_restore import triton as _triton  # noqa: F401  (registers the variant)

__all__ = ["reference"]
