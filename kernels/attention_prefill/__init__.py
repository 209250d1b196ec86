"""Attention of many tokens over a key-value cache, a span of keys at a time, and its output gate.

Row i at position p = pos + i, query head h, key-value head h // group, keys j of a span:
    s_j = q . k_j / sqrt(d) for the keys that the row sees
    peak' = max(peak, max_j s_j);  f = exp(peak - peak')
    total' = f total + sum_j exp(s_j - peak');  out' = f out + sum_j exp(s_j - peak') v_j
    y = (out / total) * sigmoid(gate), both factors rounded, once the last span is in

A row sees the keys up to its own (ALL). Where two sources hold keys, each in its own spans, a row's
edge(p) = max(0, floor((p - lag) / tile)) tile parts them: keys before it (BEFORE), and those from
it to the row's own (BEHIND).
Spans of one row are disjoint; their order decides bits, the rows of a call do not.
"""

from kernels.attention_prefill.reference import ALL, BEFORE, BEHIND, causal
from kernels.attention_prefill.reference import attention_prefill as reference
from kernels.gpu import HAS_TRITON

if HAS_TRITON:
    from kernels.attention_prefill import gluon as _gluon  # noqa: F401  (registers the variant)
    from kernels.attention_prefill import triton as _triton  # noqa: F401  (registers the variant)

__all__ = ["ALL", "BEFORE", "BEHIND", "causal", "reference"]
