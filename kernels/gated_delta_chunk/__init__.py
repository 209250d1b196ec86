"""One Gated DeltaNet mixer over many tokens, between its input and output projections.

As `gated_delta_step`, which takes a few rows, but a chunk of tokens i = 1 .. n at a time. With
G_i = g_1 + .. + g_i, D_ij = exp(G_i - G_j) for j <= i and 0 elsewhere, entry state h [d_k, d_v]:

    a_ij = beta_i (k_i . k_j) D_ij for j < i            what u_i owes the chunk's earlier keys
    u    = (I + a)^-1 diag(beta) (v - exp(G) (k h))     all corrections of the chunk at once
    o    = d_k^-0.5 (exp(G) (q h) + ((q k^T) D) u)
    h    = exp(G_n) h + k^T (exp(G_n - G) u)

Convolution, gates and l2 norms come before it, the gated norm after it.
Source: Gated DeltaNet (arXiv 2412.06464), in the rounding order of transformers' Qwen3_5 classes.
"""

from kernels.gated_delta_chunk.reference import gated_delta_chunk as reference
from kernels.gated_delta_chunk.rule import chunked, gated_norm, recurrent, unit, unit_lower_inverse
from kernels.gpu import HAS_TRITON

if HAS_TRITON:
    from kernels.gated_delta_chunk import triton as _triton  # noqa: F401  (register the variant)

__all__ = ["chunked", "gated_norm", "recurrent", "reference", "unit", "unit_lower_inverse"]
