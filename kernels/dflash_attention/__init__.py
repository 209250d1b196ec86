"""Attention of a DFlash 2 block over a ring of the target's keys, over new ones, over itself.

Row i of the block stands at p = pos + i. It sees, of the context, the keys of positions j < pos
with p - j < window, and of the block every row (`causal`: up to itself):

    q, k = rotate(rms_norm_plain(head), position);  y = softmax(q . k / sqrt(d)) v

The keys and values of the `count` positions before pos are new: they come as one matrix left them,
are normed and rotated like the block's own, and go into the ring, whose row r holds the largest
position p < pos with p mod size = r. What came for later positions was rejected and goes nowhere.
"""

from kernels.dflash_attention.reference import dflash_attention as reference
from kernels.gpu import HAS_TRITON

if HAS_TRITON:
    from kernels.dflash_attention import triton as _triton  # noqa: F401  (registers the variant)

__all__ = ["reference"]
