"""How a block ends: its slots added in order, and what the form makes of the sums.

They are stored as they are, or with residual and norm, or as silu(gate) up; the latter two leave
sums of their rows by group for the next matmul. Another form goes here. Each rounds as the
operators of its parts round, and adds in one order whatever the row count.
"""
# pyright: reportAssignmentType=false, reportOperatorIssue=false
# (Triton's constants, and branches on them, exist inside its compiler alone.)

import triton
import triton.language as tl

from kernels.define import MAX_ROWS
from kernels.int4_matmul.launch import ADD_NORM, GATE_UP, PLAIN
from kernels.int4_matmul.layout import GROUP
from kernels.int4_matmul.triton_parts import added, shares_of, unit_of
from kernels.rounding import rounded, silu

_GROUP = tl.constexpr(GROUP)
_COLUMNS = tl.constexpr(MAX_ROWS)
_IN_FLIGHT = tl.constexpr(96)  # numbers of the slots that a thread loads at once
_PLAIN = tl.constexpr(PLAIN)
_ADD_NORM = tl.constexpr(ADD_NORM)
_GATE_UP = tl.constexpr(GATE_UP)


@triton.jit
def finish(
    slots_ptr,
    begin,
    end,
    block,
    squares_ptr,
    residual_ptr,
    gain_ptr,
    y_ptr,
    normed_ptr,
    out_sums_ptr,
    out_squares_ptr,
    rows,
    n,
    groups,
    eps,
    FORM: tl.constexpr,
    SCALED: tl.constexpr,
    GROUPS: tl.constexpr,
    BLOCK: tl.constexpr,
    WARPS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Add a block's slots and write what the form asks for, for the first COLUMNS columns."""
    dtype = y_ptr.dtype.element_ty
    SLOT: tl.constexpr = BLOCK * _COLUMNS
    OUT: tl.constexpr = BLOCK // 2 if FORM == _GATE_UP else BLOCK
    OUT_GROUPS: tl.constexpr = max(OUT // _GROUP, 1)
    APART: tl.constexpr = OUT if FORM == _GATE_UP else 0
    AT_ONCE: tl.constexpr = max(_IN_FLIGHT * 32 * WARPS // (COLUMNS * BLOCK), 1)
    row = tl.arange(0, OUT)[None, :]
    out = block * OUT + row
    col = tl.arange(0, COLUMNS)
    live = (col < rows)[:, None] & (row >= 0)
    at = col[:, None] * n + out
    if FORM == _ADD_NORM:  # loads that need not wait for the slots
        s = tl.load(residual_ptr + at, mask=live, other=0.0).to(tl.float32)
        gain = tl.load(gain_ptr + tl.broadcast_to(out, (COLUMNS, OUT))).to(tl.float32)
    if SCALED:
        shares = shares_of(squares_ptr, col, col < rows, groups, GROUPS)
    place = col[:, None] * BLOCK + row
    total, up = added(slots_ptr, begin, end, place, live, SLOT, APART, AT_ONCE)
    if SCALED:
        r = unit_of(shares, col < rows)[:, None]
        total = total * r
    if FORM == _PLAIN:
        tl.store(y_ptr + at, rounded(total, dtype).to(dtype), mask=live & (out < n))
    else:
        if FORM == _ADD_NORM:
            s = rounded(s + rounded(total, dtype), dtype)
            tl.store(y_ptr + at, s.to(dtype), mask=live)
            h = rounded(s * (1.0 + gain), dtype)
            tl.store(normed_ptr + at, h.to(dtype), mask=live)
        else:
            if SCALED:
                up = up * r
            gate = rounded(total, dtype)
            h = rounded(silu(gate), dtype) * rounded(up, dtype)
            h = rounded(h, dtype)
            tl.store(y_ptr + at, h.to(dtype), mask=live)
        g = block * OUT_GROUPS + tl.arange(0, OUT_GROUPS)[None, :]
        share = col[:, None] * (n // _GROUP) + g
        some = (col < rows)[:, None] & (g >= 0)
        parts = h.reshape(COLUMNS, OUT_GROUPS, OUT // OUT_GROUPS)
        tl.store(out_sums_ptr + share, tl.sum(parts, axis=2), mask=some)
        if FORM == _ADD_NORM:
            parts = (s * s).reshape(COLUMNS, OUT_GROUPS, OUT // OUT_GROUPS)
            squares = tl.sum(parts, axis=2) / n + tl.where(g == 0, eps, 0.0)
            tl.store(out_squares_ptr + share, squares, mask=some)
