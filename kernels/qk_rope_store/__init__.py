"""Queries and keys made ready, keys and values stored: norm, partial rotary embedding, cache write.

For row i at position p = pos + i: q, k = rms_norm per head (gain 1 + weight); the first `rotary`
dims turn by the angle table's row p, half-split (dim j with j + rotary / 2); k and v go to cache
row p, clamped to +-448 where the cache is float8 e4m3 (its scale is 1), as codes with a scale of
their own where it holds integers (kernels/codes.py). Rows of one call never depend on each other,
so one statement serves any row count.
"""

from kernels.gpu import HAS_TRITON
from kernels.qk_rope_store.reference import as_cached, rotate
from kernels.qk_rope_store.reference import qk_rope_store as reference

if HAS_TRITON:
    from kernels.qk_rope_store import triton as _triton  # noqa: F401  (registers the variant)

__all__ = ["as_cached", "reference", "rotate"]
