"""What stands between the matrices of a DFlash 2 block: two-tap convolutions, sums and norms.

Rows are one block, anchor first; the row before it is zero. A convolution's taps depend on the row:

    conv(z)[i, c] = sum_j (base[j, c] + dynamic[i, j, c // group]) z[i - j, c]

`dflash_embed` starts a block: the anchor's embedding and masks', scaled. `dflash_conv` stands
before a sublayer, `dflash_conv_add_norm` after it: s = residual + conv(z). What a norm precedes
leaves in the parts that int4_matmul takes (kernels/int4_matmul), with a plain gain: rows, their
sums by 128 inputs, shares of their mean square.
"""

from kernels.dflash_conv.reference import convolve
from kernels.gpu import HAS_TRITON

if HAS_TRITON:
    from kernels.dflash_conv import triton as _triton  # noqa: F401  (registers the variants)

__all__ = ["convolve"]
