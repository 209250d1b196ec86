"""Attention of a few rows over a KVarN cache, and its output gate.

As kernels/attention_decode, where keys and values are what kernels/kvarn.py says that a row sees:
sink and ring, and packed tiles. Queries are rotated as keys are; the output is turned back ahead of
the gate.
"""

from kernels.gpu import INTERPRETED
from kernels.kvarn_attention.reference import kvarn_attention as reference
from kernels.kvarn_attention.tile import kvarn_attention as tile

if INTERPRETED:
    # right in the interpreter; on an H200 it left NaN and touched memory that is not its own, so
    # cards run the tile variant, step by step, until that is found (experiments/notes.md)
    from kernels.kvarn_attention import triton as _triton  # noqa: F401  (registers the variant)

__all__ = ["reference", "tile"]
