"""One Gated DeltaNet mixer over a few rows, between its input and output projections.

First the rows that the previous step got accepted are absorbed into the checkpoint `h`, then the
new rows run on a copy of it and leave records, so that a rejected row leaves no trace:

    absorb, for each pending row:   h = h * decay;  h = h + k u^T
    new row:  c = silu(conv(x));  q, k, v = split(c);  q, k = l2norm;  q = q / sqrt(d_k)
              decay = exp(-exp(a_log) * softplus(a + dt_bias));  beta = sigmoid(b), rounded
              s = s * decay;  u = beta * (v - s^T k);  s = s + k u^T;  o = s^T q
              y = rms_norm_plain(o) * norm_weight * silu(z)

Source: Gated DeltaNet (arXiv 2412.06464), in the rounding order of transformers' Qwen3_5 classes.
"""

from kernels.gated_delta_step.reference import gated_delta_step as reference
from kernels.gated_delta_step.tile import gated_delta_step as tile
from kernels.gpu import HAS_TRITON

if HAS_TRITON:
    from kernels.gated_delta_step import gluon as _gluon  # noqa: F401  (register the variants)
    from kernels.gated_delta_step import triton as _triton  # noqa: F401

__all__ = ["reference", "tile"]
