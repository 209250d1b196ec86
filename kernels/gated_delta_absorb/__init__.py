"""Records of accepted rows folded into a Gated DeltaNet layer's checkpoint, ahead of a prompt.

For each of the first `pending` records: h = h * decay; h = h + k u^T; and the convolution's tail
takes in their inputs. A decoding step does the same at its own start (`gated_delta_step`).
"""

from kernels.gated_delta_absorb.reference import gated_delta_absorb as reference
from kernels.gpu import HAS_TRITON

if HAS_TRITON:
    from kernels.gated_delta_absorb import triton as _triton  # noqa: F401  (registers the variant)

__all__ = ["reference"]
