"""A rotation that spreads a row's outliers over all of it: signs, then the Hadamard transform.

rotated(x) = H (s x) / sqrt(d) for rows of a width d that is a power of two; it is orthonormal, so
dot products of rotated rows stay what they were. The signs are those of a bent function, so that
constant rows spread as evenly as single spikes. Sums are a butterfly of fp32 additions: every form
of them has the same bits, whatever rows come with it.
"""
# pyright: reportGeneralTypeIssues=false

import torch
from torch import Tensor

from kernels.gpu import HAS_TRITON
from kernels.precision import wide


def signs(d: int, device: torch.device) -> Tensor:
    """fp32 [d]: -1 where i0 i1 + i2 i3 + ... is odd, of the bits of a dim i."""
    i = torch.arange(d, device=device)
    i = i & (i >> 1) & 0x5555
    for shift in (8, 4, 2):
        i = i ^ (i >> shift)
    return 1.0 - 2.0 * (i & 1).float()


def rotated(x: Tensor) -> Tensor:
    """x [..., d] -> fp32 (fp64 stays)."""
    x = wide(x)
    return _butterfly(x * signs(x.shape[-1], x.device)) * x.shape[-1] ** -0.5


def unrotated(x: Tensor) -> Tensor:
    """The inverse."""
    x = wide(x)
    d = x.shape[-1]
    return _butterfly(x) * d**-0.5 * signs(d, x.device)


def _butterfly(x: Tensor) -> Tensor:
    shape, d = x.shape, x.shape[-1]
    if d & (d - 1):
        raise ValueError(f"hadamard: expected rows of a power of two, got {d}; use another format")
    half = 1
    while half < d:
        a, b = x.reshape(-1, d // (2 * half), 2, half).unbind(2)
        x = torch.stack([a + b, a - b], 2)
        half *= 2
    return x.reshape(shape)


if HAS_TRITON:
    import triton
    import triton.language as tl

    @triton.jit
    def _signed(x, d):
        bits = d & (d >> 1) & 0x5555
        bits = bits ^ (bits >> 8)
        bits = bits ^ (bits >> 4)
        bits = bits ^ (bits >> 2)
        return tl.where((bits & 1) == 1, -x, x)

    @triton.jit
    def _mixed(x, d, D: tl.constexpr, AXIS: tl.constexpr):
        for bit in tl.static_range(16):
            if (1 << bit) < D:
                other = tl.gather(x, d ^ (1 << bit), AXIS)
                x = tl.where((d & (1 << bit)) == 0, x + other, other - x)
        return x

    @triton.jit
    def rotation(x, d, D: tl.constexpr):
        """`rotated` for one fp32 row [D], whose dims `d` numbers."""
        return _mixed(_signed(x, d), d, D, 0) * D**-0.5

    @triton.jit
    def rotation_back(x, d, D: tl.constexpr):
        """`unrotated` for fp32 rows [rows, D]; `d`, of the same shape, numbers their dims."""
        return _signed(_mixed(x, d, D, 1) * D**-0.5, d)
