"""Rows as integer codes with one fp32 scale each, and codes back as numbers.

8 bits: x = code scale, codes -127 .. 127 in int8, scale = amax / 127; rounded half to even.
4 bits: x = unrotated((code - 7.5) scale), codes 0 .. 15, scale = amax / 8 of the rotated row (see
hadamard.py): no value is more than half a step off. A byte holds dim 2 j in its low half and
2 j + 1 in its high half.
Scales are at least TINY, so a row of zeros divides by something; rows are clamped to +-LARGE, so
that a rotated one has no infinities. Rows never depend on each other.
"""
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false

import torch
from torch import Tensor

from kernels.gpu import HAS_TRITON, same_dtype
from kernels.hadamard import rotated, unrotated
from kernels.precision import wide

TINY, LARGE = 2.0**-100, 2.0**117


def encode(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """x [..., d] -> codes, int8 [..., d] or uint8 [..., d / 2] by `dtype`, and scales [...]."""
    x = wide(x).clamp(-LARGE, LARGE)
    if dtype == torch.int8:
        most = x.abs().amax(-1)
        # by a tensor: a card multiplies by a number's reciprocal
        scale = (most / torch.full_like(most, 127.0)).clamp(min=TINY)
        codes = (x / scale[..., None]).round().clamp(-127, 127)
        return codes.to(torch.int8), scale.float()
    x = rotated(x)
    scale = (x.abs().amax(-1) * 0.125).clamp(min=TINY)
    codes = ((x / scale[..., None]).floor().clamp(-8, 7) + 8).to(torch.uint8)
    return codes[..., ::2] | codes[..., 1::2] << 4, scale.float()


def numbers(codes: Tensor, dtype: torch.dtype) -> Tensor:
    """What codes stand for before their scale, in `dtype`: [..., d], rotated where of 4 bits."""
    if codes.dtype == torch.int8:
        return codes.to(dtype)
    return torch.stack([codes & 15, codes >> 4], -1).flatten(-2).to(dtype) - 7.5


def decode(codes: Tensor, scale: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Codes and scales -> [..., d] in fp32 (fp64)."""
    x = numbers(codes, dtype) * scale[..., None]
    return x if codes.dtype == torch.int8 else unrotated(x)


def format_of(
    operator: str,
    x: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k_scale: Tensor | None,
    v_scale: Tensor | None,
) -> str:
    """int8, int4, float8 or plain: what kernels know a cache's format by.

    `x` has the model's dtype, and so has a plain cache. ValueError where they do not fit together.
    """
    same_dtype(operator, k_cache=k_cache, v_cache=v_cache)
    coded = {torch.int8: "int8", torch.uint8: "int4"}.get(k_cache.dtype)
    for name, scale in (("k_scale", k_scale), ("v_scale", v_scale)):
        given = None if scale is None else (scale.dtype, tuple(scale.shape), scale.is_contiguous())
        wanted = (torch.float32, tuple(k_cache.shape[:2]), True) if coded else None
        if given != wanted:
            raise ValueError(
                f"{operator}: {name} of a {k_cache.dtype} cache must be"
                f" {'contiguous fp32 [kv_heads, capacity]' if coded else 'None'}, got {given}"
            )
    if coded:
        return coded
    if k_cache.dtype == torch.float8_e4m3fn:
        return "float8"
    same_dtype(operator, x=x, k_cache=k_cache)
    return "plain"


#: PTX, two words of four nibbles, subnormals of fp16: n 2^-24 or n 2^-20
INT4_WORDS = """{
    .reg .b32 word, n, fine, coarse, middle;
    mov.b32 fine, 0x78007800;
    mov.b32 coarse, 0x68006800;
    mov.b32 middle, 0xA380A380;
    and.b32 n, $4, 0x000F000F;
    fma.rn.f16x2 $0, n, fine, middle;
    and.b32 n, $4, 0x00F000F0;
    fma.rn.f16x2 $1, n, coarse, middle;
    shr.u32 word, $4, 8;
    and.b32 n, word, 0x000F000F;
    fma.rn.f16x2 $2, n, fine, middle;
    and.b32 n, word, 0x00F000F0;
    fma.rn.f16x2 $3, n, coarse, middle;
}"""

if HAS_TRITON:
    import triton
    import triton.language as tl

    from kernels.hadamard import rotation
    from kernels.rounding import PLAIN

    _TINY = tl.constexpr(TINY)
    _LARGE = tl.constexpr(LARGE)

    # a word's bytes 0 and 2, then 1 and 3, as the low bits of 1024 + 128 + code in fp16
    _INT8_WORDS = tl.constexpr("""{
        .reg .b32 low, high, bias;
        mov.b32 bias, 0xE480E480;
        lop3.b32 low, $2, 0x00FF00FF, 0x64806480, 0x6A;
        shr.u32 high, $2, 8;
        lop3.b32 high, high, 0x00FF00FF, 0x64806480, 0x6A;
        add.rn.f16x2 $0, low, bias;
        add.rn.f16x2 $1, high, bias;
    }""")

    _INT4_WORDS = tl.constexpr(INT4_WORDS)
    STEP = tl.constexpr(2.0**9)  # what `words` of 4 bits are to be multiplied by

    @triton.jit
    def encoded(x, col, D: tl.constexpr, FORMAT: tl.constexpr):
        """fp32 row x [D], of which `col` numbers the dims -> codes (of 4 bits: 0 .. 15), scale."""
        x = tl.minimum(tl.maximum(x, -_LARGE), _LARGE)
        if FORMAT == "int8":
            scale = tl.maximum(tl.div_rn(tl.max(tl.abs(x), axis=0), 127.0), _TINY)
            x = tl.div_rn(x, scale)
            codes = (x + 12582912.0) - 12582912.0  # 1.5 * 2^23: rounds half to even
            codes = tl.minimum(tl.maximum(codes, -127.0), 127.0)
        else:
            x = rotation(x, col, D)
            scale = tl.maximum(tl.max(tl.abs(x), axis=0) * 0.125, _TINY)
            x = tl.floor(tl.div_rn(x, scale))
            codes = tl.minimum(tl.maximum(x, -8.0), 7.0) + 8.0
        return codes.to(tl.int32), scale

    @triton.jit
    def words(w, FORMAT: tl.constexpr):
        """int16 words -> fp16, one part for each place in a word, lowest first, exactly.

        Codes of 8 bits are what they stand for ahead of their scale, those of 4 that over STEP.
        """
        if PLAIN:
            parts = ()
            if FORMAT == "int8":
                for c in tl.static_range(2):
                    code = (((w >> (8 * c)) & 0xFF) ^ 0x80) - 0x80
                    parts = parts + (code.to(tl.float16),)
            else:
                for c in tl.static_range(4):
                    code = ((w >> (4 * c)) & 0xF).to(tl.float32) - 7.5
                    parts = parts + ((code / STEP).to(tl.float16),)
        elif FORMAT == "int8":
            a, b = tl.inline_asm_elementwise(
                _INT8_WORDS, "=r,=r,r", [w], dtype=(tl.float16, tl.float16), is_pure=True, pack=2
            )
            parts = a, b
        else:
            a, b, c, d = tl.inline_asm_elementwise(
                _INT4_WORDS,
                "=r,=r,=r,=r,r",
                [w],
                dtype=(tl.float16, tl.float16, tl.float16, tl.float16),
                is_pure=True,
                pack=2,
            )
            parts = a, b, c, d
        return parts
