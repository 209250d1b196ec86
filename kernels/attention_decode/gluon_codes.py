"""A block's codes in shared memory to operands of tensor cores in fp16, and queries in their order.

Line order is free, so that no code moves between threads. Keys: a thread has 16 neighbouring bytes
of a key at a time, whose codes are the inputs 16 s + 8 h + 2 t + b of a product over 64 dims, t
being its lane; queries are stored in that order (`_dims`). Values: a thread has words of four dims
of neighbouring keys; dim 4 (8 w + g) + 2 i + j of a head is line 128 i + 16 w + 8 j + g, which
`leave` in gluon_fold.py undoes.

fp16 holds every code (of 4 bits: over STEP), so how codes are loaded and converted changes no bit;
which dims meet in a product, and as which of its inputs, does. A format is a branch of each
function.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from kernels.attention_decode.gluon_plan import BLOCK, WARPS, D
from kernels.codes import INT4_WORDS
from kernels.gluon_names import viewed
from kernels.rounding import FOUR_BYTES

_BLOCK = gl.constexpr(BLOCK)
_HALF = gl.constexpr(BLOCK // 2)
_D = gl.constexpr(D)
_WARPS = gl.constexpr(WARPS)

# four codes of a key
_FLOAT8_KEYS = gl.constexpr("""{
    .reg .b16 a, b;
    .reg .b32 low, high;
    mov.b32 {a, b}, $4;
    cvt.rn.f16x2.e4m3x2 low, a;
    cvt.rn.f16x2.e4m3x2 high, b;
    mov.b32 {$0, $1}, low;
    mov.b32 {$2, $3}, high;
}""")
# codes as the low bits of 1024 + 128 + code in fp16
_INT8_KEYS = gl.constexpr("""{
    .reg .b32 word, low, high, bias, top;
    mov.b32 bias, 0xE480E480;
    mov.b32 top, 0x64646464;
    xor.b32 word, $4, 0x80808080;
    prmt.b32 low, word, top, 0x4140;
    prmt.b32 high, word, top, 0x4342;
    add.rn.f16x2 low, low, bias;
    add.rn.f16x2 high, high, bias;
    mov.b32 {$0, $1}, low;
    mov.b32 {$2, $3}, high;
}""")
_FLOAT8_VALUES = gl.constexpr(FOUR_BYTES)  # the same four dims of two keys
_INT8_VALUES = gl.constexpr("""{
    .reg .b32 low, high, n, bias;
    mov.b32 bias, 0xE480E480;
    prmt.b32 low, $4, $5, 0x5410;
    prmt.b32 high, $4, $5, 0x7632;
    lop3.b32 n, low, 0x00FF00FF, 0x64806480, 0x6A;
    add.rn.f16x2 $0, n, bias;
    shr.u32 low, low, 8;
    lop3.b32 n, low, 0x00FF00FF, 0x64806480, 0x6A;
    add.rn.f16x2 $1, n, bias;
    lop3.b32 n, high, 0x00FF00FF, 0x64806480, 0x6A;
    add.rn.f16x2 $2, n, bias;
    shr.u32 high, high, 8;
    lop3.b32 n, high, 0x00FF00FF, 0x64806480, 0x6A;
    add.rn.f16x2 $3, n, bias;
}""")
_INT4 = gl.constexpr(INT4_WORDS)


@gluon.jit
def _parts(words, asm: gl.constexpr, registers: gl.constexpr, pack: gl.constexpr):
    """Words -> their codes in fp16 [..., 2, 2], the lowest bit of a code's place first."""
    a, b, c, d = gl.inline_asm_elementwise(
        asm,
        registers,
        [words],
        dtype=(gl.float16, gl.float16, gl.float16, gl.float16),
        is_pure=True,
        pack=pack,
    )
    return gl.join(gl.join(a, b), gl.join(c, d))


@gluon.jit
def keys(words, FORMAT: gl.constexpr):
    """Words [keys, 16] -> the operand [keys, 64]; nothing moves between threads."""
    KEYS: gl.constexpr = words.shape[0]
    MMA: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [_WARPS, 1], [16, 16, 16])
    if FORMAT == "int4":
        x = _parts(words, _INT4, "=r,=r,=r,=r,r", 2)  # key, (t, u, b), c0, c1
        x = x.reshape(KEYS, 4, 2, 2, 2, 2).permute(0, 2, 5, 4, 1, 3)
    else:  # key, (t, s), b, h
        if FORMAT == "int8":
            x = _parts(words, _INT8_KEYS, "=h,=h,=h,=h,r", 1)
        else:
            x = _parts(words, _FLOAT8_KEYS, "=h,=h,=h,=h,r", 1)
        x = x.reshape(KEYS, 4, 4, 2, 2).permute(0, 2, 4, 1, 3)
    return gl.convert_layout(
        x.reshape(KEYS, 64), gl.DotOperandLayout(0, MMA, 2), assert_trivial=True
    )


@gluon.jit
def values(words, FORMAT: gl.constexpr):
    """Words [64, keys] of four dims -> the operand [256, keys]; nothing moves between threads."""
    KEYS: gl.constexpr = words.shape[1]
    MMA: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [_WARPS, 1], [16, 16, 16])
    if FORMAT == "int4":
        x = _parts(words, _INT4, "=r,=r,=r,=r,r", 2)
    elif FORMAT == "int8":
        x = _parts(words, _INT8_VALUES, "=r,=r,=r,=r,r,r", 2)
    else:
        x = _parts(words, _FLOAT8_VALUES, "=r,=r,=r,=r,r,r", 2)
    x = x.reshape(8, 8, KEYS, 2, 2).permute(4, 0, 3, 1, 2).reshape(_D, KEYS)
    return gl.convert_layout(x, gl.DotOperandLayout(0, MMA, 2), assert_trivial=True)


@gluon.jit
def _dims(product: gl.constexpr, i, FORMAT: gl.constexpr):
    """The dims that a product of key scores has as its inputs i."""
    b = i % 2
    t = i // 2 % 4
    h = i // 8 % 2
    s = i // 16
    if FORMAT == "int4":
        d = 64 * t + 16 * product + s // 2 * 8 + 4 * b + s % 2 * 2 + h
    else:
        d = 32 * t + product // 2 * 128 + product % 2 * 16 + 4 * s + 2 * h + b
    return d


@gluon.jit
def raw_keys(stage, FORMAT: gl.constexpr):
    """A block's codes in shared memory -> words [keys, 16] of its four products."""
    if FORMAT == "int4":
        L: gl.constexpr = gl.DistributedLinearLayout(
            [[0, 0, 1], [0, 0, 2], [0, 0, 4], [0, 8, 0], [0, 0, 8]],
            [[0, 0, 16], [0, 0, 32], [0, 1, 0], [0, 2, 0], [0, 4, 0]],
            [[0, 16, 0], [0, 32, 0], [0, 64, 0]],
            [],
            [1, _BLOCK, 64],
        )
        halves = viewed(stage, gl.int16, [1, _BLOCK, 64], gl.NVMMASharedLayout(128, 16, 3))
        x = halves.load(L).reshape(_BLOCK, 4, 2, 2, 4).permute(0, 1, 4, 3, 2)
    else:
        L: gl.constexpr = gl.DistributedLinearLayout(
            [[0, 0, 1], [0, 0, 2], [0, 8, 0], [0, 0, 4], [1, 0, 0]],
            [[0, 0, 8], [0, 0, 16], [0, 1, 0], [0, 2, 0], [0, 4, 0]],
            [[0, 16, 0], [0, 32, 0], [0, 64, 0]],
            [],
            [2, _BLOCK, 32],
        )
        x = stage.load(L).reshape(2, _BLOCK, 4, 2, 4).permute(1, 2, 4, 3, 0)
    low, high = gl.split(x.reshape(_BLOCK, 16, 2, 2))
    a, b = gl.split(low)
    c, d = gl.split(high)
    return a, b, c, d


@gluon.jit
def raw_values(stage, FORMAT: gl.constexpr):
    """A block's codes in shared memory -> words [64, 64] of its first half's keys, its second's."""
    if FORMAT == "int4":
        L: gl.constexpr = gl.DistributedLinearLayout(
            [[0, 1, 0], [0, 8, 0], [0, 16, 0], [0, 32, 0], [0, 64, 0]],
            [[0, 2, 0], [0, 4, 0], [0, 0, 1], [0, 0, 2], [0, 0, 4]],
            [[0, 0, 8], [0, 0, 16], [0, 0, 32]],
            [],
            [1, _BLOCK, 64],
        )
        halves = viewed(stage, gl.int16, [1, _BLOCK, 64], gl.NVMMASharedLayout(128, 16, 3))
        x = halves.load(L).reshape(1, 2, _HALF, 64)
    else:
        L: gl.constexpr = gl.DistributedLinearLayout(
            [[0, 1, 0], [0, 8, 0], [0, 16, 0], [0, 32, 0], [0, 64, 0]],
            [[0, 2, 0], [0, 4, 0], [0, 0, 1], [0, 0, 2], [0, 0, 4]],
            [[0, 0, 8], [0, 0, 16], [1, 0, 0]],
            [],
            [2, _BLOCK, 32],
        )
        x = stage.load(L).reshape(2, 2, _HALF, 32)
    a, b = gl.split(x.permute(0, 3, 2, 1).reshape(64, _HALF, 2))
    return a, b


@gluon.jit
def stage_queries(
    q_ptr, shared, first, vectors, kv, HEADS: gl.constexpr, GROUP: gl.constexpr,
    FORMAT: gl.constexpr,
):  # fmt: skip
    """Queries of a part's columns, the first of them `first`, in the order of the products."""
    N: gl.constexpr = shared.shape[1]
    Q: gl.constexpr = gl.BlockedLayout([1, 2], [1, 32], [_WARPS, 1], [1, 0])
    vector = first + gl.arange(0, N, gl.SliceLayout(1, Q))
    i = gl.arange(0, 64, gl.SliceLayout(0, Q))
    at = (vector // GROUP * HEADS + kv * GROUP + vector % GROUP)[:, None] * _D
    live = (vector < vectors)[:, None]
    for product in gl.static_range(4):
        d = _dims(product, i, FORMAT)[None, :]
        q = gl.load(q_ptr + (at + d), mask=live & (d >= 0), other=0.0)
        shared.index(product).store(q.to(gl.float16))
