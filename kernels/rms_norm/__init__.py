"""RMSNorm with a zero-centred gain: y = x / sqrt(mean(x^2) + eps) * (1 + weight); fp32 inside.

`plain` reads the gain as it is (y = ... * weight, rounded before the product), as Qwen3's norms do.
`add` takes the residual sum first: s = x + delta, rounded once. `unfold` ends a norm that came in
parts: rows with their gain, and shares of their mean square.
"""

from kernels.gpu import HAS_TRITON
from kernels.rms_norm.reference import add_rms_norm, rms_norm, rms_norm_plain, unfold_norm

if HAS_TRITON:
    from kernels.rms_norm import triton as _triton  # noqa: F401  (registers the variants)

__all__ = ["add_rms_norm", "rms_norm", "rms_norm_plain", "unfold_norm"]
