"""Attention of a few rows over a key-value cache, and its output gate.

Row i at position p = pos + i, query head h, key-value head h // group:
    a = softmax_j(q . k_j / sqrt(d)) over j <= p
    y = (sum_j a_j v_j) * sigmoid(gate), both factors rounded
In caches of integers k_j and v_j are codes times a scale of their own (kernels/codes.py).
"""

from kernels.attention_decode.reference import attention_decode as reference
from kernels.attention_decode.tile import attention_decode as tile
from kernels.gpu import HAS_TRITON

if HAS_TRITON:
    from kernels.attention_decode import gluon as _gluon  # noqa: F401  (registers the variant)
    from kernels.attention_decode import triton as _triton  # noqa: F401  (registers the variant)

__all__ = ["reference", "tile"]
