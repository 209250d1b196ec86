"""Keys or values of a cache as numbers: what codes [h, j] and their scale stand for, rounded once.

A prompt's chunk reads a span of keys once for each of its thousands of rows; restored once ahead of
it, the span costs the products nothing. Codes are those of kernels/codes.py, or numbers in another
dtype, which have no scale.
"""

from kernels.gpu import HAS_TRITON
from kernels.kv_restore.reference import kv_restore as reference

if HAS_TRITON:
    from kernels.kv_restore import triton as _triton  # noqa: F401  (registers the variant)

__all__ = ["reference"]
