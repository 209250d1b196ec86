"""Queries and keys made ready, a few rows stored exactly: norm, rotary embedding, rotation, fp16.

As kernels/qk_rope_store up to the rounding of keys and values; then keys, values and queries are
rotated (kernels/hadamard.py). The row at position p goes to row p of `sink` below 128, from there
on to row p % 256 of `ring`. Rows of one call never depend on each other.
"""

from kernels.gpu import HAS_TRITON
from kernels.kvarn_store.reference import kvarn_store as reference

if HAS_TRITON:
    from kernels.kvarn_store import triton as _triton  # noqa: F401  (registers the variant)

__all__ = ["reference"]
