"""What becomes of a program's sums: y, or partial results and one y of all of them.

Partial results are as in fold.py, a slot of `WIDTH` columns for each program. Sums over them are
trees of all `SLOTS` slots, those of no program too: a tree's order, which is numerics, comes from
the layouts in `fold`, not from the rows of a call or from who folds. The layout of `leave` only
says who writes what.
"""

from triton import constexpr_function
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from kernels.attention_decode.fold import write
from kernels.attention_decode.gluon_plan import WARPS, D
from kernels.codes import STEP
from kernels.hadamard import rotation_back

_D = gl.constexpr(D)
_WARPS = gl.constexpr(WARPS)


@gluon.jit
def fold(
    slot,
    splits,
    column,
    vector,
    kv,
    gate_ptr,
    y_ptr,
    out_ptr,
    peak_ptr,
    total_ptr,
    HEADS: gl.constexpr,
    GROUP: gl.constexpr,
    WIDTH: gl.constexpr,
    SLOTS: gl.constexpr,
    ROTATED: gl.constexpr,
):
    """Write y for one vector: the sum of all its partial results, in one fixed tree."""
    L: gl.constexpr = gl.BlockedLayout([1, 4], [1, 32], [_WARPS // 2, 2], [1, 0])
    W: gl.constexpr = gl.BlockedLayout([1, 8], [1, 32], [_WARPS, 1], [1, 0])  # a line to a warp
    part = gl.arange(0, SLOTS, gl.SliceLayout(1, L))
    d = gl.arange(0, _D, gl.SliceLayout(0, L))[None, :]
    at = (slot + part) * WIDTH + column
    live = part < splits
    peaks = gl.load(peak_ptr + at, mask=live, other=float("-inf"), cache_modifier=".cg")
    masses = gl.load(total_ptr + at, mask=live, other=0.0, cache_modifier=".cg")
    own = live[:, None] & (d >= 0)
    parts = gl.load(out_ptr + at[:, None] * _D + d, mask=own, other=0.0, cache_modifier=".cg")
    peak = gl.max(peaks, axis=0)
    shares = gl.exp2(peaks - gl.where(peak == float("-inf"), 0.0, peak))
    total = gl.sum(masses * shares, axis=0)
    out = gl.sum(parts * shares[:, None], axis=0)
    out = gl.convert_layout(out, gl.SliceLayout(0, W))[None, :]
    d = gl.arange(0, _D, gl.SliceLayout(0, W))[None, :]
    if ROTATED:
        out = rotation_back(out, d, _D)
    at = (vector // GROUP * HEADS + kv * GROUP + vector % GROUP) * _D + d
    write(y_ptr, gate_ptr, at, d >= 0, out, total)


@constexpr_function
def _results(columns: int) -> gl.DistributedLinearLayout:
    """Of [256, columns] as the product leaves it, with a thread's four dims as neighbours."""
    further = [[0, 1 << i] for i in range(3, columns.bit_length() - 1)]
    return gl.DistributedLinearLayout(
        [[1, 0], [2, 0], [0, 1], *further],
        [[0, 2], [0, 4], [4, 0], [8, 0], [16, 0]],
        [[32, 0], [64, 0], [128, 0]],
        [],
        [D, columns],
    )


@gluon.jit
def leave(
    out,
    peaks,
    total,
    first,
    vectors,
    kv,
    alone,
    slot,
    column,
    gate_ptr,
    y_ptr,
    out_ptr,
    peak_ptr,
    total_ptr,
    HEADS: gl.constexpr,
    GROUP: gl.constexpr,
    WIDTH: gl.constexpr,
    FORMAT: gl.constexpr,
):
    """A part's sums: its vectors' y where a program is `alone`, partial results otherwise."""
    N: gl.constexpr = out.shape[1]
    OUT: gl.constexpr = _results(N)
    C: gl.constexpr = gl.SliceLayout(0, OUT)
    total = gl.convert_layout(gl.sum(gl.sum(total, axis=0), axis=0), C)
    out = out.reshape(2, 8, 2, 8, N).permute(1, 3, 0, 2, 4).reshape(_D, N)
    out = gl.convert_layout(out, OUT, assert_trivial=True)  # four neighbouring dims to a thread
    local = gl.arange(0, N, C)
    d = gl.arange(0, _D, gl.SliceLayout(1, OUT))[:, None]
    vector = first + local
    live = vector < vectors
    wide = live[None, :] & (d >= 0)
    if alone:
        place = (vector // GROUP * HEADS + kv * GROUP + vector % GROUP)[None, :] * _D + d
        write(y_ptr, gate_ptr, place, wide, out, total[None, :])
    else:
        at = slot * WIDTH + column + local
        gl.store(peak_ptr + at, peaks.load(C), mask=live)
        gl.store(total_ptr + at, total, mask=live)
        UNIT: gl.constexpr = STEP if FORMAT == "int4" else 1.0
        gl.store(out_ptr + at[None, :] * _D + d, out * UNIT, mask=wide)
