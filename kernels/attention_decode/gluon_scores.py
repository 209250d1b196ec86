"""A block's scores to weights, and what becomes of the sums ahead of it.

A value's scale enters its weight as a power of two; `total` sums weights without it, over a
thread's own keys alone as long as blocks follow.

All arithmetic here is numerics, each column's own. Layouts are those that a product leaves its sums
in: nothing moves between threads but a column's peak.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from kernels.attention_decode.gluon_plan import BLOCK, WARPS, D

_BLOCK = gl.constexpr(BLOCK)
_D = gl.constexpr(D)
_WARPS = gl.constexpr(WARPS)


@gluon.jit
def begin(N: gl.constexpr, first, GROUP: gl.constexpr):
    """A part's peaks, sums of weights, of values, scores ahead of the first block; its rows."""
    MMA: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [_WARPS, 1], [16, N, 16])
    peak = gl.full([N], float("-inf"), gl.float32, gl.SliceLayout(0, MMA))
    scores = gl.zeros([_BLOCK, N], gl.float32, MMA)
    total = gl.sum(scores.reshape(8, 2, 8, N), axis=1)
    row = (first + gl.arange(0, N, gl.SliceLayout(0, MMA))) // GROUP
    return peak, total, gl.zeros([_D, N], gl.float32, MMA), scores, row


@gluon.jit
def scales(k_scale_ptr, v_scale_ptr, at):
    """Of a block's keys and values, a line each."""
    MMA: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [_WARPS, 1], [16, 16, 16])
    at = at + gl.arange(0, _BLOCK, gl.SliceLayout(1, MMA))
    return gl.load(k_scale_ptr + at), gl.load(v_scale_ptr + at)


@gluon.jit
def weigh(
    s, peaks, rows, total, factors, scale, partial, limit, capacity, SCALED: gl.constexpr
):  # fmt: skip
    """Weights of a block's scores against the highest so far, and what becomes of earlier sums.

    Highest is what is so after a value's scale. `limit`, the first key that row 0 does not see, and
    `capacity` count from where the block starts.
    """
    N: gl.constexpr = s.shape[1]
    MMA: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [_WARPS, 1], [16, N, 16])
    LINE: gl.constexpr = gl.SliceLayout(1, MMA)
    COLUMN: gl.constexpr = gl.SliceLayout(0, MMA)
    own, lift, inverse = factors
    peak = peaks.load(COLUMN)
    if SCALED:
        own = gl.convert_layout(own, LINE, assert_trivial=True)
        lift = gl.convert_layout(lift, LINE, assert_trivial=True)
        own, lift = gl.broadcast(own[:, None], s)[0], gl.broadcast(lift[:, None], s)[0]
        s = gl.fma(s, own, lift)
    else:
        s = s * scale
    if partial:
        keys = gl.minimum(limit + rows.load(COLUMN), capacity)
        local = gl.arange(0, _BLOCK, LINE)
        s = gl.where(local[:, None] < keys[None, :], s, float("-inf"))
    high = gl.maximum(peak, gl.max(s, axis=0))
    base = gl.where(high == float("-inf"), 0.0, high)
    weight = gl.exp2(s - base[None, :])
    keep = gl.exp2(peak - base)
    mass = weight
    if SCALED:
        inverse = gl.convert_layout(inverse, LINE, assert_trivial=True)
        mass = weight * inverse[:, None]
    # the sums of a thread's own two keys; all of them meet after the last block
    kept = gl.max(gl.broadcast(keep[None, :], s)[0].reshape(8, 2, 8, N), axis=1)
    total = total * kept + gl.sum(mass.reshape(8, 2, 8, N), axis=1)
    peaks.store(high)
    return weight, keep, total
