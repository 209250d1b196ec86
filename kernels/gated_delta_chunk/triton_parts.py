"""What the mixer's kernels share: how tiles are read, rounded and written, and silu.

Each has a form for the interpreter (PLAIN), which multiplies fp32 alone and truncates bfloat16, and
one for a GPU. Which instructions do it may change; what a value is rounded to, and how close silu
comes, is numerics of every kernel that asks.
"""

import triton
import triton.language as tl

from kernels.rounding import PLAIN, rounded, silu

_SILU = tl.constexpr("""{
    .reg .f32 t;
    mul.f32 t, $1, 0fBFB8AA3B;
    ex2.approx.ftz.f32 t, t;
    add.f32 t, t, 0f3F800000;
    rcp.approx.ftz.f32 t, t;
    mul.f32 $0, $1, t;
}""")


@triton.jit
def operand(x, dtype: tl.constexpr):
    """fp32 x as a product takes it; the interpreter multiplies fp32 alone."""
    if PLAIN:
        y = rounded(x, dtype)
    else:
        y = x.to(dtype)
    return y


@triton.jit
def load(ptr):
    """A tile of operands."""
    if PLAIN:
        x = tl.load(ptr).to(tl.float32)
    else:
        x = tl.load(ptr)
    return x


@triton.jit
def quick_silu(x):
    """x / (1 + exp(-x)) within a few units in the last place, without subnormals."""
    if PLAIN:
        y = silu(x)
    else:
        y = tl.inline_asm_elementwise(_SILU, "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)
    return y


@triton.jit
def store(ptr, x, mask=None):
    """fp32 x, rounded to what `ptr` points to."""
    dtype = ptr.dtype.element_ty
    tl.store(ptr, operand(x, dtype).to(dtype), mask=mask)
