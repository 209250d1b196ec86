"""Packed tensor-core table matmul: the plan and the ending of int4's, weights looked up instead.

What a program owns, how the programs of a block settle and why bits do not depend on the row count
is as in kernels/int4_matmul/triton_kernel.py. Here the weights themselves are operands, so dots add
up over all inputs of a stripe, and a row's power of two comes at a block's end.

A level is looked up by byte permutes: the low three bits of a code pick one of eight bytes, and the
permute gives zero where the fourth is set (it repeats a sign, and levels have none), so that two of
them, one with that bit turned, make a table of 16. An integer below 128 is the bits of a subnormal
bfloat16, its multiple of 2^-133: no level is converted. Scales carry 2^132, which leaves 1/2.

PACKED picks that, in inline PTX; else plain arithmetic in fp32, which the interpreter can run.
"""
# pyright: reportGeneralTypeIssues=false, reportCallIssue=false

from dataclasses import replace

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.define import MAX_ROWS, variant
from kernels.gpu import (
    INTERPRETED,
    SUPPORT,
    counters,
    dependent_launch,
    fetches_ahead,
    let_next_start,
    power_of_two,
    wait_for_inputs,
)
from kernels.int4_matmul.launch import card, check, slots
from kernels.int4_matmul.layout import GROUP, ROWS, TILE, WORDS
from kernels.int4_matmul.plan import Plan, plan
from kernels.int4_matmul.triton_parts import (
    MOST_AHEAD,
    added,
    dot,
    fetch_ahead,
    leave,
    side_by_side,
)
from kernels.rounding import rounded
from kernels.table4_matmul.layout import APART, FIRST, LEVELS, STEP, ZERO, ZEROS
from kernels.table4_matmul.reference import SHAPES, fake

CARRIED = 132  # octaves that packed scales carry: with a level's -133 a weight is halved


def _word(levels: tuple[int, ...]) -> int:
    return int.from_bytes(bytes(levels), "little")


def _both(half: int) -> int:
    return half << 16 | half


_TILE = tl.constexpr(TILE)
_ROWS = tl.constexpr(ROWS)
_WORDS = tl.constexpr(WORDS)
_GROUP = tl.constexpr(GROUP)
_COLUMNS = tl.constexpr(MAX_ROWS)
_FIRST, _STEP = tl.constexpr(FIRST), tl.constexpr(STEP)
_ZERO, _APART, _ZEROS = tl.constexpr(ZERO), tl.constexpr(APART), tl.constexpr(ZEROS)
_LEVELS0, _LEVELS1 = tl.constexpr(_word(LEVELS[0:4])), tl.constexpr(_word(LEVELS[4:8]))
_LEVELS2, _LEVELS3 = tl.constexpr(_word(LEVELS[8:12])), tl.constexpr(_word(LEVELS[12:16]))

# two words to four pairs of weights: operands are the words, then scales and offsets of each group
# and the table, every one twice, since they come one for each word
_LOOK_UP = tl.constexpr(
    """{
    .reg .b32 turned, high, turned_high, first, second, other, pair;
    xor.b32 turned, $4, 0x88888888;
    shr.u32 high, $4, 16;
    shr.u32 turned_high, turned, 16;
    prmt.b32 first, $21, $23, $4;
    prmt.b32 other, $25, $27, turned;
    or.b32 first, first, other;
    prmt.b32 second, $21, $23, high;
    prmt.b32 other, $25, $27, turned_high;
    or.b32 second, second, other;
    prmt.b32 pair, first, second, 0xC480;
    fma.rn.bf16x2 $0, pair, $5, $13;
    prmt.b32 pair, first, second, 0xD591;
    fma.rn.bf16x2 $1, pair, $7, $15;
    prmt.b32 pair, first, second, 0xE6A2;
    fma.rn.bf16x2 $2, pair, $9, $17;
    prmt.b32 pair, first, second, 0xF7B3;
    fma.rn.bf16x2 $3, pair, $11, $19;
    }"""
)

# a row's four bytes to four scales and offsets, each as a pair of equal bfloat16 numbers (minus a
# zero is a subnormal too), and the table by way of a bit that is never set: permutes take constants
# from registers alone, and a constant would be moved into one ahead of each
_ROWS_SHARE = tl.constexpr(
    """{
    .reg .b32 b, z, nothing;
    """
    + "".join(
        f"""prmt.b32 b, $12, 0, {0x4040 + 0x0101 * i};
    mad.lo.u32 ${i}, b, {STEP}, {_both(FIRST + (CARRIED << 7))};
    and.b32 z, b, {_both(ZEROS - 1)};
    mad.lo.u32 z, z, {2**32 - APART}, {_both(0x8000 + ZERO)};
    mov.b32 nothing, {_both(0x8000)};
    fma.rn.bf16x2 ${4 + i}, ${i}, z, nothing;
    """
        for i in range(4)
    )
    + """mov.u32 nothing, %lanemask_lt;
    shr.u32 nothing, nothing, 31;
    """
    + "".join(f"xor.b32 ${8 + i}, nothing, {_word(LEVELS[4 * i : 4 * i + 4])};" for i in range(4))
    + "}"
)


# results are written while operands are still read
_LOOK_UP_IO = tl.constexpr(",".join(["=&r"] * 4 + ["r"] * 25))
_ROWS_SHARE_IO = tl.constexpr(",".join(["=&r"] * 12 + ["r"]))


@triton.jit
def _level(code):
    """LEVELS[code] as fp32."""
    low = tl.where(code < 4, _LEVELS0, _LEVELS1)
    high = tl.where(code < 12, _LEVELS2, _LEVELS3)
    four = tl.where(code < 8, low, high)
    return ((four >> ((code & 3) * 8)) & 127).to(tl.float32)


@triton.jit
def weights(words, bytes, PLACE: tl.constexpr):
    """Weights of nibble PLACE of words [n, 32], as fp32."""
    b = ((bytes >> (8 * PLACE)) & 255)[:, None]
    scale = ((b * _STEP + _FIRST) << 16).to(tl.float32, bitcast=True)
    zero = ((b % _ZEROS) * _APART - _ZERO).to(tl.float32)
    offset = rounded(zero * scale, tl.bfloat16)
    code = (words.to(tl.int32) >> (4 * PLACE)) & 15
    return rounded(_level(code) * scale + offset, tl.bfloat16)


@triton.jit
def _look_up(words, bytes, PACKED: tl.constexpr):
    """int16 words [n, 32] and int32 group bytes [n] -> weights, two of [n, 64], in the order of the
    inputs; packed ones are halved.
    """
    if PACKED:
        s0, s1, s2, s3, o0, o1, o2, o3, t0, t1, t2, t3 = tl.inline_asm_elementwise(
            _ROWS_SHARE,
            _ROWS_SHARE_IO,
            [bytes[:, None]],
            dtype=(
                tl.int32,
                tl.int32,
                tl.int32,
                tl.int32,
                tl.int32,
                tl.int32,
                tl.int32,
                tl.int32,
                tl.int32,
                tl.int32,
                tl.int32,
                tl.int32,
            ),  # fmt: skip
            is_pure=True,
            pack=1,
        )
        w0, w1, w2, w3 = tl.inline_asm_elementwise(
            _LOOK_UP,
            _LOOK_UP_IO,
            [words, s0, s1, s2, s3, o0, o1, o2, o3, t0, t1, t2, t3],
            dtype=(tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16),
            is_pure=True,
            pack=2,
        )
    else:
        w0, w1 = weights(words, bytes, 0), weights(words, bytes, 1)
        w2, w3 = weights(words, bytes, 2), weights(words, bytes, 3)
    return side_by_side(w0, w1), side_by_side(w2, w3)


@triton.jit
def _multiply(
    x_ptr,
    tiles_ptr,
    bytes_ptr,
    exponent_ptr,
    slot_ptr,  # the program's first
    start,  # of the first unit in tiles_ptr
    rows,
    n,
    groups,
    block,  # of the first unit, as is `first`, its group
    first,
    units,
    ROW_TILES: tl.constexpr,
    STAGES: tl.constexpr,
    PACKED: tl.constexpr,
):
    """A stripe's sums over its groups of each block, to one slot [16, BLOCK] a block.

    -> the number of blocks
    """
    BLOCK: tl.constexpr = ROW_TILES * _ROWS
    row = tl.arange(0, BLOCK)
    col = tl.arange(0, _COLUMNS)
    live = col < rows
    lines = row // _ROWS * groups * _TILE
    words = tiles_ptr + start
    parameters = bytes_ptr + start // 2
    word = (lines + row % _ROWS * _WORDS)[:, None] + tl.arange(0, _WORDS)[None, :]
    parameter = lines // 2 + _ROWS * _WORDS // 2 + row % _ROWS
    group = first
    x_at = col[None, :] * (groups * _GROUP) + tl.arange(0, _GROUP // 2)[:, None]
    done = 0
    acc = tl.zeros([BLOCK, _COLUMNS], tl.float32)
    for unit in tl.range(0, units, num_stages=STAGES):
        w = tl.load(words + word)
        bytes = tl.load(parameters + parameter)
        x = x_ptr + group * _GROUP
        x0 = tl.load(x + x_at, mask=live[None, :], other=0.0)
        x1 = tl.load(x + x_at + _GROUP // 2, mask=live[None, :], other=0.0)
        low, high = _look_up(w, bytes, PACKED)
        d = tl.zeros([BLOCK, _COLUMNS], tl.float32)
        d = dot(low, x0, d, PACKED)
        d = dot(high, x1, d, PACKED)
        acc += d  # a dot into acc itself would make every one wait for the one before
        group += 1
        ends = group == groups
        if ends | (unit == units - 1):
            out = (block + done) * BLOCK + row
            power = tl.load(exponent_ptr + out, mask=out < n, other=0).to(tl.int32)
            power = ((power + (128 if PACKED else 127)) << 23).to(tl.float32, bitcast=True)
            sums = acc * power[:, None]
            leave(slot_ptr + done * (BLOCK * _COLUMNS), sums, rows, PACKED)
            acc = tl.zeros([BLOCK, _COLUMNS], tl.float32)
            done += 1
        ahead = tl.where(ends, 1 + (ROW_TILES - 1) * groups, 1) * _TILE
        group = tl.where(ends, 0, group)
        words += ahead
        parameters += ahead // 2
    return done


@triton.jit(do_not_specialize=["rows"])
def _table4_matmul(
    x_ptr,  # [rows, k]
    tiles_ptr,  # int16
    bytes_ptr,  # the same memory as int32
    exponent_ptr,  # [n] int8
    slots_ptr,  # [programs + blocks, 16, 64 ROW_TILES] fp32
    counters_ptr,  # [blocks] int32, all 0 between launches
    y_ptr,  # [rows, n]
    rows,
    n,
    blocks,
    groups,
    ROW_TILES: tl.constexpr,
    STAGES: tl.constexpr,
    PACKED: tl.constexpr,
    AHEAD: tl.constexpr,
    AT_ONCE: tl.constexpr,
    PDL: tl.constexpr,
):
    BLOCK: tl.constexpr = ROW_TILES * _ROWS
    SLOT: tl.constexpr = BLOCK * _COLUMNS
    let_next_start(PDL)
    p, programs = tl.program_id(0), tl.num_programs(0)
    units = blocks * groups
    from_unit = units * p // programs
    to_unit = units * (p + 1) // programs
    first_block = from_unit // groups
    group = from_unit - first_block * groups
    start = ((first_block * ROW_TILES).to(tl.int64) * groups + group) * _TILE
    if AHEAD > 0:
        held = tl.minimum(to_unit - from_unit, groups - group)
        fetch_ahead(tiles_ptr, start, groups * _TILE, ROW_TILES // 2, held, ROW_TILES, AHEAD)
    wait_for_inputs(PDL)
    done = _multiply(
        x_ptr,
        tiles_ptr,
        bytes_ptr,
        exponent_ptr,
        slots_ptr + (p + first_block) * SLOT,
        start,
        rows,
        n,
        groups,
        first_block,
        group,
        to_unit - from_unit,
        ROW_TILES,
        STAGES,
        PACKED,
    )
    tl.debug_barrier()  # all of this program's sums before its arrivals
    dtype = y_ptr.dtype.element_ty
    row, col = tl.arange(0, BLOCK)[None, :], tl.arange(0, _COLUMNS)[:, None]
    for block in tl.range(first_block, first_block + done, num_stages=1):
        first = ((block * groups + 1) * programs - 1) // units  # programs of this block
        last = ((block + 1) * groups * programs - 1) // units
        if tl.atomic_add(counters_ptr + block, 1, sem="acq_rel") == last - first:
            out = block * BLOCK + row
            live = (col < rows) & (out < n)
            place = col * BLOCK + row
            total, _ = added(
                slots_ptr, first + block, last + block + 1, place, live, SLOT, 0, AT_ONCE
            )
            tl.store(y_ptr + col * n + out, rounded(total, dtype).to(dtype), mask=live)
            tl.store(counters_ptr + block, 0)


def launch(
    x: Tensor,
    tiles: Tensor,
    exponent: Tensor,
    splits: list[int],
    chosen: Plan | None = None,
    packed: bool = not INTERPRETED,
) -> Tensor:
    """x [rows <= 16, k], tiles and exponent (layout.py) -> [rows, n] in x's dtype.

    Packed: x is bfloat16. Plain: fp32 inside, x of any dtype up to fp32.
    """
    n = sum(splits)
    check("table4_matmul", x, tiles, n, packed, None, None)
    if exponent.shape != (n,) or exponent.dtype != torch.int8 or not exponent.is_contiguous():
        raise ValueError(
            f"table4_matmul: exponent must be contiguous int8 of shape {(n,)}, got"
            f" {exponent.dtype} of {tuple(exponent.shape)}"
        )
    row_tiles, groups = tiles.shape[:2]
    chosen = chosen or plan(row_tiles, groups, card(x.device))
    blocks = row_tiles // chosen.row_tiles
    y = x.new_empty(x.shape[0], n)
    if not y.numel():
        return y
    size = (chosen.programs + blocks) * chosen.row_tiles * ROWS * MAX_ROWS
    overlap = dependent_launch(x.device)
    _table4_matmul[(chosen.programs,)](
        x,
        tiles,
        tiles.view(torch.int32),
        exponent,
        slots(x.device, power_of_two(size)),
        counters(x.device, power_of_two(blocks)),
        y,
        x.shape[0],
        n,
        blocks,
        groups,
        ROW_TILES=chosen.row_tiles,
        STAGES=chosen.stages,
        PACKED=packed,
        AHEAD=min(chosen.ahead, MOST_AHEAD) if fetches_ahead(x.device) else 0,
        AT_ONCE=max(96 * 32 * chosen.warps // (MAX_ROWS * chosen.row_tiles * ROWS), 1),
        PDL=overlap,
        launch_pdl=overlap,
        num_warps=chosen.warps,
        maxnreg=chosen.registers,
    )
    return y


@variant("table4_matmul", "triton", fake, support=replace(SUPPORT, multiples=SHAPES))
def table4_matmul(x: Tensor, tiles: Tensor, exponent: Tensor, splits: list[int]) -> Tensor:
    """As the reference, for 1 to 16 rows of bfloat16."""
    return launch(x, tiles, exponent, splits)
