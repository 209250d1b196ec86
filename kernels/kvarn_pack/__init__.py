"""Tiles of a KVarN cache packed: those that a step's or chunk's rows are the first to see so.

Tile t is packed where a row at position 128 (t + 1) + 16 is among pos .. pos + rows - 1 (kernels/
kvarn.py): nothing is remembered, and packing a tile again writes the same bytes. The mean of the
sink's rows is written beside it.
"""

from kernels.gpu import HAS_TRITON
from kernels.kvarn_pack.reference import kvarn_pack as reference

if HAS_TRITON:
    from kernels.kvarn_pack import triton as _triton  # noqa: F401  (registers the variant)

__all__ = ["reference"]
