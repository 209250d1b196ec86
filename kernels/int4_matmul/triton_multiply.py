"""What a program multiplies: its stripe of units (plan.py), or 16 rows of a dense matrix beside.

Per group of 128 inputs each word becomes four tensor core operands whose elements are the exact
integers 128 + code; two dots of 64 inputs follow, and scale and minimum are applied to the fp32
accumulator. At the end of a block the program leaves its sums in its slot. Rows of x past `rows`
read as zero. How words are fetched and unpacked may change; the order of the sums is numerics.

PACKED picks the unpacking: inline PTX to bfloat16, or plain arithmetic in fp32, which is what the
interpreter can run.
"""
# pyright: reportGeneralTypeIssues=false, reportAssignmentType=false
# (Triton's ranges and constants exist inside its compiler alone.)

import triton
import triton.language as tl

from kernels.define import MAX_ROWS
from kernels.int4_matmul.layout import GROUP, ROWS, TILE, UNPACK, WORDS
from kernels.int4_matmul.triton_parts import dot, leave, shares_of, side_by_side, unit_of
from kernels.rounding import rounded

BESIDE_ROWS = 16  # rows of the dense matrix beside, per program

_TILE = tl.constexpr(TILE)
_ROWS = tl.constexpr(ROWS)
_WORDS = tl.constexpr(WORDS)
_GROUP = tl.constexpr(GROUP)
_COLUMNS = tl.constexpr(MAX_ROWS)
_BESIDE_ROWS = tl.constexpr(BESIDE_ROWS)
_BESIDE_INPUTS = tl.constexpr(256)
_UNPACK = tl.constexpr(UNPACK)


@triton.jit
def _unpack(words, PACKED: tl.constexpr):
    """int16 words [n, 32] -> two [n, 64] of 128 + code, in the order of the inputs."""
    if PACKED:
        q0, q1, q2, q3 = tl.inline_asm_elementwise(
            _UNPACK,
            "=r,=r,=r,=r,r",
            [words],
            dtype=(tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16),
            is_pure=True,
            pack=2,
        )
    else:
        w = words.to(tl.int32)
        q0 = ((w & 15) + 128).to(tl.float32)
        q1 = (((w >> 4) & 15) + 128).to(tl.float32)
        q2 = (((w >> 8) & 15) + 128).to(tl.float32)
        q3 = (((w >> 12) & 15) + 128).to(tl.float32)
    return side_by_side(q0, q1), side_by_side(q2, q3)


@triton.jit
def multiply(
    x_ptr,
    tiles_ptr,
    parameters_ptr,
    sums_ptr,
    slot_ptr,  # the program's first
    start,  # of the first unit in tiles_ptr
    half,  # tiles from a block's first row to its second half's first row
    rows,
    groups,
    first,  # group of the first unit
    units,
    ROW_TILES: tl.constexpr,
    STEP: tl.constexpr,
    SUMS: tl.constexpr,
    STAGES: tl.constexpr,
    PACKED: tl.constexpr,
):
    """A stripe's sums over its groups of each block, to one slot [16, BLOCK] a block.

    -> the number of blocks
    """
    BLOCK: tl.constexpr = ROW_TILES * _ROWS
    HALF: tl.constexpr = max(ROW_TILES // 2, 1)
    row = tl.arange(0, BLOCK)
    col = tl.arange(0, _COLUMNS)
    live = col < rows
    lines = (row // _ROWS % HALF + row // (_ROWS * HALF) * half) * groups * _TILE
    words = tiles_ptr + start
    parameters = parameters_ptr + start // 2
    word = (lines + row % _ROWS * _WORDS)[:, None] + tl.arange(0, _WORDS)[None, :]
    parameter = lines // 2 + _ROWS * _WORDS // 2 + row % _ROWS
    group = first
    x_at = col[None, :] * (groups * _GROUP) + tl.arange(0, _GROUP // 2)[:, None]
    done = 0
    acc = tl.zeros([BLOCK, _COLUMNS], tl.float32)
    for unit in tl.range(0, units, num_stages=STAGES):
        w = tl.load(words + word)
        pair = tl.load(parameters + parameter)
        x = x_ptr + group * _GROUP
        x0 = tl.load(x + x_at, mask=live[None, :], other=0.0)
        x1 = tl.load(x + x_at + _GROUP // 2, mask=live[None, :], other=0.0)
        if SUMS:
            total = tl.load(sums_ptr + group + col * groups, mask=live, other=0.0)
        else:
            total = tl.sum(x0.to(tl.float32) + x1.to(tl.float32), axis=0)
        low, high = _unpack(w, PACKED)
        d = tl.zeros([BLOCK, _COLUMNS], tl.float32)
        d = dot(low, x0, d, PACKED)
        d = dot(high, x1, d, PACKED)
        scale = (pair << 16).to(tl.float32, bitcast=True)
        minimum = (pair & -65536).to(tl.float32, bitcast=True)
        offset = tl.fma(scale, -128.0, minimum)  # fp32: bfloat16 would cost a quarter of a step
        acc = tl.fma(offset[:, None], total[None, :], acc)
        acc = tl.fma(scale[:, None], d, acc)
        group += 1
        ends = group == groups
        if ends | (unit == units - 1):
            leave(slot_ptr + done * (BLOCK * _COLUMNS), acc, rows, PACKED)
            acc = tl.zeros([BLOCK, _COLUMNS], tl.float32)
            done += 1
        ahead = tl.where(ends, 1 + (STEP - 1) * groups, 1) * _TILE
        group = tl.where(ends, 0, group)
        words += ahead
        parameters += ahead // 2
    return done


@triton.jit
def multiply_beside(
    x_ptr,
    weight_ptr,
    squares_ptr,
    z_ptr,
    part,
    rows,
    n,
    groups,
    SCALED: tl.constexpr,
    GROUPS: tl.constexpr,
    STAGES: tl.constexpr,
    PACKED: tl.constexpr,
):
    """16 rows of a dense matrix [n, k] times x."""
    dtype = z_ptr.dtype.element_ty
    k = groups * _GROUP
    row = part * _BESIDE_ROWS + tl.arange(0, _BESIDE_ROWS)
    col = tl.arange(0, _COLUMNS)
    live = col < rows
    i = tl.arange(0, _BESIDE_INPUTS)
    weight = weight_ptr + row[:, None] * k + i[None, :]
    x = x_ptr + col[None, :] * k + i[:, None]
    acc = tl.zeros([_BESIDE_ROWS, _COLUMNS], tl.float32)
    for start in tl.range(0, k, _BESIDE_INPUTS, num_stages=STAGES):
        inside = start + i < k
        w = tl.load(weight, mask=(row < n)[:, None] & inside[None, :], other=0.0)
        xs = tl.load(x, mask=inside[:, None] & live[None, :], other=0.0)
        if PACKED:
            acc = tl.dot(w, xs, acc)
        else:
            acc = tl.dot(w.to(tl.float32), xs.to(tl.float32), acc, input_precision="ieee")
        weight += _BESIDE_INPUTS
        x += _BESIDE_INPUTS
    if SCALED:
        shares = shares_of(squares_ptr, col, live, groups, GROUPS)
        acc = acc * unit_of(shares, live)[None, :]
    z = z_ptr + col[None, :] * n + row[:, None]
    tl.store(z, rounded(acc, dtype).to(dtype), mask=(row < n)[:, None] & live[None, :])
