"""What a step begins with: the embedding of its tokens and drafts, and their first RMS norm.

    id_i = max(token_i, 0);  x_i = embed[id_i];  y_i = x_i / sqrt(mean(x_i^2) + eps) * (1 + gain)

A place without a draft (a negative token) reads some token: its row is never kept. Row i reads the
token at position pos + i; its own will stand at the next one.
"""

from kernels.embed_norm.reference import embed_norm
from kernels.gpu import HAS_TRITON

if HAS_TRITON:
    from kernels.embed_norm import triton as _triton  # noqa: F401  (registers the variant)

__all__ = ["embed_norm"]
