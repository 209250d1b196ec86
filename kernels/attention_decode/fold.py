"""Partial results of a row's keys, and how the programs that have them make one of them.

A partial result is the highest score seen (peak), the sum of the weights against it (total), and
the weighted sum of values (out), all fp32.
"""
# pyright: reportGeneralTypeIssues=false

import triton
import triton.language as tl

from kernels.hadamard import rotation_back
from kernels.rounding import rounded


@triton.jit
def origin(peak):
    """What to subtract from scores before exp2: the peak, or 0 where nothing was seen."""
    return tl.where(peak == float("-inf"), 0.0, peak)


@triton.jit
def write(y_ptr, gate_ptr, at, mask, out, total):
    """y at `at`: the sums over their weights, times the gate; both factors rounded."""
    dtype = y_ptr.dtype.element_ty
    gate = tl.load(gate_ptr + at, mask=mask, other=0.0).to(tl.float32)
    y = rounded(out * (1.0 / total), dtype) * rounded(1.0 / (1.0 + tl.exp(-gate)), dtype)
    tl.store(y_ptr + at, rounded(y, dtype).to(dtype), mask=mask)


@triton.jit
def fold(
    slot,
    count,
    first,
    step,
    row,
    vectors,
    kv,
    gate_ptr,
    y_ptr,
    out_ptr,
    peak_ptr,
    total_ptr,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    D: tl.constexpr,
    COLUMNS: tl.constexpr,
    WIDTH: tl.constexpr,
    SLOTS: tl.constexpr,
    AHEAD: tl.constexpr,
    MANY: tl.constexpr,
    ROTATED: tl.constexpr,
):
    """Write y for vectors `first`, `first + step` ... (MANY each), a vector being a row's head.

    Each is the sum of partial results `slot` .. `slot + count - 1`, taken in order, AHEAD of them
    under way at a time; ROTATED ones are turned back.
    """
    d = tl.arange(0, D)[None, :]
    for start in range(first * MANY, vectors, step * MANY):
        vector = start + tl.arange(0, MANY)
        live = vector < vectors
        own = live[:, None] & (d >= 0)
        head = vector % GROUP
        column = vector // GROUP * WIDTH + head
        peaks = tl.load(
            peak_ptr + (slot + tl.arange(0, SLOTS)[None, :]) * COLUMNS + column[:, None],
            mask=live[:, None] & (tl.arange(0, SLOTS)[None, :] < count),
            other=float("-inf"),
            cache_modifier=".cg",
        )
        total = tl.zeros([MANY], tl.float32)
        out = tl.zeros([MANY, D], tl.float32)
        base = origin(tl.max(peaks, axis=1))
        for near in range(0, count, AHEAD):
            weights = ()
            masses = ()
            parts = ()
            for i in tl.static_range(AHEAD):
                at = (slot + near + i) * COLUMNS + column
                valid = live & (at < (slot + count) * COLUMNS)
                peak = tl.load(peak_ptr + at, mask=valid, other=float("-inf"), cache_modifier=".cg")
                weights = weights + (peak,)
                mass = tl.load(total_ptr + at, mask=valid, other=0.0, cache_modifier=".cg")
                masses = masses + (mass,)
                part = tl.load(
                    out_ptr + at[:, None] * D + d,
                    mask=valid[:, None] & (d >= 0),
                    other=0.0,
                    cache_modifier=".cg",
                )
                parts = parts + (part,)
            for i in tl.static_range(AHEAD):
                share = tl.exp2(weights[i] - base)
                total += masses[i] * share
                out = tl.fma(parts[i], tl.broadcast_to(share[:, None], out.shape), out)
        if ROTATED:
            out = rotation_back(out, tl.broadcast_to(d, out.shape), D)
        at = ((row + vector // GROUP) * HEADS + kv * GROUP + head)[:, None] * D + d
        write(y_ptr, gate_ptr, at, own, out, total[:, None])


@triton.jit
def settle(
    group,
    split,
    splits,
    folders,
    row,
    vectors,
    kv,
    gate_ptr,
    y_ptr,
    out_ptr,
    peak_ptr,
    total_ptr,
    arrived_ptr,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    D: tl.constexpr,
    COLUMNS: tl.constexpr,
    WIDTH: tl.constexpr,
    SPLITS: tl.constexpr,
    SLOTS: tl.constexpr,
    ROTATED: tl.constexpr,
):
    """Count this program, number `split` of a group's `splits`, whose partial results are written.

    The last `folders` of them wait for all and fold; where only one may, the last to arrive, which
    need not wait. The counter ends at zero.
    """
    arrived_ptr += group
    base = group * SPLITS
    many = tl.where(splits > 8, 1, 4)
    folders = tl.minimum(tl.minimum(splits, folders), (vectors + many - 1) // many)
    tl.debug_barrier()  # all that this program wrote, before its arrival
    arrived = tl.atomic_add(arrived_ptr, 1, sem="acq_rel") + 1
    if tl.where(folders == 1, arrived < splits, split + folders < splits):
        return
    while arrived < splits:
        arrived = tl.atomic_add(arrived_ptr, 0, sem="acquire")
    mine = tl.where(folders == 1, 0, split + folders - splits)
    if splits > 8:
        fold(
            base, splits, mine, folders, row, vectors, kv, gate_ptr, y_ptr, out_ptr, peak_ptr,
            total_ptr, HEADS, GROUP, D, COLUMNS, WIDTH, SLOTS, 16, 1, ROTATED,
        )  # fmt: skip
    else:
        fold(
            base, splits, mine, folders, row, vectors, kv, gate_ptr, y_ptr, out_ptr, peak_ptr,
            total_ptr, HEADS, GROUP, D, COLUMNS, WIDTH, 8, 8, 4, ROTATED,
        )  # fmt: skip
    if tl.atomic_add(arrived_ptr, 1, sem="relaxed") == splits + folders - 1:
        tl.store(arrived_ptr, 0)
