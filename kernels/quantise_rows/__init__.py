"""Rows in 8 bits: x[r, d] = codes[r, d] scale[r]; scale = max |x| / 127 (int8) or / 448 (e4m3).

What products in 8 bits take, of tokens and of a weight's output rows. codes = x times the scale's
inverse, fp32 and rounded to nearest even; a row of zeros has scale 1. A row with a number that is
not finite has a scale that is not finite either, so that nothing hides it.
"""

from kernels.gpu import HAS_TRITON
from kernels.quantise_rows.reference import quantise_rows as reference

if HAS_TRITON:
    from kernels.quantise_rows import triton as _triton  # noqa: F401  (registers the variant)

__all__ = ["reference"]
