"""Arithmetic shared by Triton kernels: rounding, float8, log1p; plain forms for the interpreter.

The interpreter truncates bfloat16 instead of rounding it, and its float8 conversions are wrong at
the ends. Rounded values convert exactly, so kernels round first and convert after.
"""

import triton
import triton.language as tl

from kernels.gpu import INTERPRETED

PLAIN = tl.constexpr(INTERPRETED)


@triton.jit
def rounded(x, dtype: tl.constexpr):
    """fp32 x rounded to nearest even in `dtype`, as fp32."""
    if PLAIN and dtype == tl.bfloat16:
        bits = x.to(tl.uint32, bitcast=True)
        bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
        return bits.to(tl.float32, bitcast=True)
    else:
        return x.to(dtype).to(tl.float32)


@triton.jit
def float8_codes(x):
    """fp32 x clamped to +-448 and rounded to nearest even in float8 e4m3, as uint8. No NaN."""
    size = tl.minimum(tl.abs(x), 448.0)
    bits = size.to(tl.int32, bitcast=True)
    normal = ((bits + 0x7FFFF + ((bits >> 20) & 1)) >> 20) - (120 << 3)
    small = size * 512.0 + 12582912.0  # a subnormal's code, rounded by 1.5 * 2^23
    subnormal = small.to(tl.int32, bitcast=True) & 0xF
    code = tl.where(size < 0.015625, subnormal, normal)
    return (code | ((x.to(tl.int32, bitcast=True) >> 31) & 0x80)).to(tl.uint8)


@triton.jit
def float8_values(codes):
    """Codes of float8 e4m3 (as uint8 in the interpreter) as fp16, exactly. No NaN."""
    if PLAIN:
        c = codes.to(tl.int16)
        bits = ((c & 0x7F) << 7) | ((c & 0x80) << 8)
        return (bits.to(tl.float16, bitcast=True) * 256.0).to(tl.float16)
    else:
        return codes.to(tl.float16)


@triton.jit
def log1p(x):
    """log(1 + x) in fp32 for x > -1, near 0 too: the rounding of 1 + x is divided out."""
    w = 1.0 + x
    off = tl.where(w == 1.0, 1.0, w - 1.0)
    return tl.where(w == 1.0, x, tl.log(w) * (x / off))
