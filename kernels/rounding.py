"""Arithmetic shared by Triton kernels: rounding, float8, log1p; plain forms for the interpreter.

The interpreter truncates bfloat16 instead of rounding it, and its float8 conversions are wrong at
the ends. Rounded values convert exactly, so kernels round first and convert after.
"""

import triton
import triton.language as tl

from kernels.gpu import INTERPRETED

PLAIN = tl.constexpr(INTERPRETED)

#: PTX, the same byte of two words side by side, then both to fp16
FOUR_BYTES = """{
    .reg .b32 low, high;
    .reg .b16 b0, b1, b2, b3;
    prmt.b32 low, $4, $5, 0x5140;
    prmt.b32 high, $4, $5, 0x7362;
    mov.b32 {b0, b1}, low;
    mov.b32 {b2, b3}, high;
    cvt.rn.f16x2.e4m3x2 $0, b0;
    cvt.rn.f16x2.e4m3x2 $1, b1;
    cvt.rn.f16x2.e4m3x2 $2, b2;
    cvt.rn.f16x2.e4m3x2 $3, b3;
}"""
_FOUR_BYTES = tl.constexpr(FOUR_BYTES)

# both rounded to bfloat16, and back in fp32
_PAIR = tl.constexpr("""{
    .reg .b32 pair;
    cvt.rn.bf16x2.f32 pair, $3, $2;
    shl.b32 $0, pair, 16;
    and.b32 $1, pair, 0xffff0000;
}""")


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
def rounded_pairs(x, dtype: tl.constexpr):
    """As `rounded`; two conversions to bfloat16 are one instruction."""
    if PLAIN or dtype != tl.bfloat16:
        y = rounded(x, dtype)
    else:
        y = tl.inline_asm_elementwise(
            _PAIR, "=r,=r,r,r", [x], dtype=tl.float32, is_pure=True, pack=2
        )
    return y


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
def _float8(code):
    """The lowest byte as fp16, where the interpreter has no conversion."""
    bits = (((code & 0x7F) << 7) | ((code & 0x80) << 8)).to(tl.int16)
    return (bits.to(tl.float16, bitcast=True) * 256.0).to(tl.float16)


@triton.jit
def float8_words(words):
    """int32 words of four float8 e4m3 codes -> four of fp16, lowest byte first, exactly. No NaN."""
    if PLAIN:
        values = _float8(words), _float8(words >> 8), _float8(words >> 16), _float8(words >> 24)
    else:
        a, b, c, d = tl.inline_asm_elementwise(
            _FOUR_BYTES,
            "=r,=r,=r,=r,r,r",
            [words],
            dtype=(tl.float16, tl.float16, tl.float16, tl.float16),
            is_pure=True,
            pack=2,
        )
        values = a, b, c, d
    return values


@triton.jit
def log1p(x):
    """log(1 + x) in fp32 for x > -1, near 0 too: the rounding of 1 + x is divided out."""
    w = 1.0 + x
    off = tl.where(w == 1.0, 1.0, w - 1.0)
    return tl.where(w == 1.0, x, tl.log(w) * (x / off))


@triton.jit
def silu(x):
    return x / (1.0 + tl.exp(-x))


@triton.jit
def softplus(x):
    return tl.maximum(x, 0.0) + log1p(tl.exp(-tl.abs(x)))
