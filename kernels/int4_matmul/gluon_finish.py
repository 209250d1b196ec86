"""How a block of Gluon stripes ends: its slots added in order, and what the form makes of sums.

They are stored as they are, or with residual and norm, or as silu(gate) up; the latter two leave
sums of their rows by group for the next matmul. Each rounds as the operators of its parts round,
and adds in one order whatever the row count. Another form goes here.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from kernels.define import MAX_ROWS
from kernels.int4_matmul.gluon_parts import gated, unit_of
from kernels.int4_matmul.launch import ADD_NORM, GATE_UP, PLAIN
from kernels.int4_matmul.layout import GROUP
from kernels.rounding import rounded

_GROUP = gl.constexpr(GROUP)
_SLOT_COLUMNS = gl.constexpr(MAX_ROWS)
_PLAIN = gl.constexpr(PLAIN)
_GATE_UP = gl.constexpr(GATE_UP)
_ADD_NORM = gl.constexpr(ADD_NORM)


@gluon.jit
def _places(block, rows, n, OUT: gl.constexpr, COLUMNS: gl.constexpr, L: gl.constexpr):
    """Of a block's outputs: rows of x [COLUMNS, 1], groups [1, G], outputs in the block [1, G, 128]
    and in a row of n; where all of them stand [COLUMNS, G, 128], and which are real.
    """
    G: gl.constexpr = OUT // _GROUP
    SHARE: gl.constexpr = gl.SliceLayout(2, L)
    col = gl.arange(0, COLUMNS, gl.SliceLayout(1, SHARE))[:, None]
    g = gl.arange(0, G, gl.SliceLayout(0, SHARE))[None, :]
    i = gl.arange(0, _GROUP, gl.SliceLayout(0, gl.SliceLayout(1, L)))[None, :][:, None, :]
    row = g[:, :, None] * _GROUP + i
    out = block * OUT + row
    wide = col[:, :, None]
    return col, g, row, out, wide * n + out, (wide < rows) & (out < n)


@gluon.jit
def given_to(block, pointers, rows, n, BLOCK: gl.constexpr, COLUMNS: gl.constexpr, L: gl.constexpr):
    """A block's residual and gain."""
    y_ptr, out_sums_ptr, residual_ptr, gain_ptr, normed_ptr, out_squares_ptr = pointers
    col, g, row, out, at, live = _places(block, rows, n, BLOCK, COLUMNS, L)
    s = gl.load(residual_ptr + at, mask=live, other=0.0)
    return s, gl.load(gain_ptr + out + col[:, :, None] * 0, mask=live, other=0.0)


@gluon.jit
def finish(
    slots_ptr,
    begin,
    end,
    block,
    shares,  # of the squares, if SCALED
    given,  # residual and gain
    pointers,
    rows,
    n,
    eps,
    FORM: gl.constexpr,
    BLOCK: gl.constexpr,
    SCALED: gl.constexpr,
    COLUMNS: gl.constexpr,
    L: gl.constexpr,
):
    """Add a block's slots in order and write what the form asks for."""
    y_ptr, out_sums_ptr, residual_ptr, gain_ptr, normed_ptr, out_squares_ptr = pointers
    dtype: gl.constexpr = y_ptr.dtype.element_ty
    GATE_UP: gl.constexpr = FORM == _GATE_UP
    OUT: gl.constexpr = BLOCK // 2 if GATE_UP else BLOCK
    AT_ONCE: gl.constexpr = 8 if COLUMNS == 8 else 4
    G: gl.constexpr = OUT // _GROUP
    col, g, row, out, at, live = _places(block, rows, n, OUT, COLUMNS, L)
    place = col[:, :, None] * BLOCK + row
    total = gl.zeros([COLUMNS, G, _GROUP], gl.float32, L)
    up = gl.zeros([COLUMNS, G, _GROUP], gl.float32, L)
    for slot in range(begin, end, AT_ONCE):
        p = slots_ptr + slot * (BLOCK * _SLOT_COLUMNS) + place
        for j in gl.static_range(AT_ONCE):
            some = live & (slot + j < end)
            q = p + j * (BLOCK * _SLOT_COLUMNS)
            total += gl.load(q, mask=some, other=0.0, cache_modifier=".cg")
            if GATE_UP:
                up += gl.load(q + OUT, mask=some, other=0.0, cache_modifier=".cg")
    if SCALED:
        COL: gl.constexpr = gl.SliceLayout(1, gl.SliceLayout(2, L))
        r = gl.convert_layout(unit_of(shares), COL)[:, None][:, :, None]
        total = total * r
        up = up * r
    if FORM == _PLAIN:
        gl.store(y_ptr + at, total.to(dtype), mask=live)
    else:
        if GATE_UP:
            h = gated(total, up, dtype)
            gl.store(y_ptr + at, h.to(dtype), mask=live)
        else:
            s, gain = given
            s = rounded(s.to(gl.float32) + rounded(total, dtype), dtype)
            h = rounded(s * (1.0 + gain.to(gl.float32)), dtype)
            gl.store(y_ptr + at, s.to(dtype), mask=live)
            gl.store(normed_ptr + at, h.to(dtype), mask=live)
        share = col * (n // _GROUP) + block * G + g
        some = (col < rows) & (block * G + g < n // _GROUP)
        gl.store(out_sums_ptr + share, gl.sum(h, axis=2), mask=some)
        if FORM == _ADD_NORM:
            first = gl.where(block * G + g == 0, eps, 0.0)
            gl.store(out_squares_ptr + share, gl.sum(s * s, axis=2) / n + first, mask=some)
