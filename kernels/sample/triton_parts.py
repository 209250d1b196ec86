"""What kernels that look at scores share: blocks of columns, noise, keys that order as scores do.

dflash_select draws with the same noise and ranks by the same keys, so a change of either is a
change of both operators: how they are computed may change, their values may not. Blocks may have
another width.
"""

import triton
import triton.language as tl

from kernels.rounding import log1p

BLOCK = 4096  # columns of a program, where logits are read


@triton.jit
def _mix(x):
    x = x ^ (x >> 16)
    x = x * 0x21F0AAAD
    x = x ^ (x >> 15)
    x = x * 0x735A2D97
    return x ^ (x >> 15)


@triton.jit
def gumbel(seed_ptr, position, token):
    """Noise of `token` (int32) at `position` (int64), as in the reference, in 32-bit integers."""
    first = tl.load(seed_ptr).to(tl.uint32) ^ _mix(position.to(tl.uint32))
    second = tl.load(seed_ptr + 1).to(tl.uint32) ^ _mix((position + 1).to(tl.uint32))
    bits = _mix(_mix(_mix(first) ^ token.to(tl.uint32)) + _mix(second))
    v = tl.minimum((bits.to(tl.float32) + 0.5) * 2.3283064365386963e-10, 1.0 - 2.0**-24)
    return -tl.log(-log1p(-v))


@triton.jit
def key_of(score):
    """An int32 that orders as the scores do; -0 counts as 0."""
    bits = (score + 0.0).to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def score_of(key):
    return (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)
