"""What the Gluon int4 matmuls share: copies, operands of tensor cores, groups, norms, rounding.

A thread reads 16 bytes of a row of weights and of a row of x, the same inputs of both, and makes
operands of them as they are (`as_operand`). Up to 8 rows there are 8 columns of x, above 16: the
same bits, since a tensor core sums each column alone and in one order.
"""

import torch
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy, mma_v2
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from kernels.define import MAX_ROWS
from kernels.gluon_names import barrier, bulk_copy, copy, viewed
from kernels.int4_matmul.layout import GROUP, LINES, ROWS, UNPACK, WORDS
from kernels.rounding import rounded, silu

CONSUMERS = 2  # of four warps each
SHARED = 216 * 1024  # bytes for a program's ring and what stands beside it
#: tiles that a program has on their way at most: enough for the memory's full rate, and what the
#: kernel before still reads and writes does not queue behind a whole ring's worth
UNDER_WAY = 12
MOST_STAGES = 12  # of a ring: with more a program only takes longer to set up their barriers

_ROWS = gl.constexpr(ROWS)
_WORDS = gl.constexpr(WORDS)
_GROUP = gl.constexpr(GROUP)
_PARTS = gl.constexpr(GROUP // WORDS)  # of a group of inputs, one of each nibble
_UNPACK = gl.constexpr(UNPACK)


@gluon.jit
def as_operand(x, WHICH: gl.constexpr, MMA: gl.constexpr):
    """[.., n, 32] of inputs in order -> an operand with them; nothing moves between threads.

    A thread holds inputs 8 c + 2 m + b for four m and two b, and the operand wants 8 m + 2 c + b of
    it. Both operands are renamed alike, so their product is the same sum.
    """
    if len(x.shape) == 3:
        B: gl.constexpr = x.shape[0]
        N: gl.constexpr = x.shape[1]
        x = x.reshape(B, N, 4, 4, 2).permute(0, 1, 3, 2, 4).reshape(B, N, _WORDS)
        if WHICH == 1:
            x = x.permute(0, 2, 1)
    else:
        N: gl.constexpr = x.shape[0]
        x = x.reshape(N, 4, 4, 2).permute(0, 2, 1, 3).reshape(N, _WORDS)  # c, m, b -> m, c, b
        if WHICH == 1:
            x = x.permute(1, 0)
    return gl.convert_layout(x, gl.DotOperandLayout(WHICH, MMA, 2), assert_trivial=True)


@gluon.jit
def unpack(words, MMA: gl.constexpr):
    """Words [.., n, 32], each of four codes -> four operands [.., n, 32] of 128 + code."""
    q0, q1, q2, q3 = gl.inline_asm_elementwise(
        _UNPACK,
        "=r,=r,=r,=r,r",
        [words],
        dtype=(gl.bfloat16, gl.bfloat16, gl.bfloat16, gl.bfloat16),
        is_pure=True,
        pack=2,
    )
    q0, q1 = as_operand(q0, 0, MMA), as_operand(q1, 0, MMA)
    return q0, q1, as_operand(q2, 0, MMA), as_operand(q3, 0, MMA)


@gluon.jit
def inputs_of(x, i: gl.constexpr, COLUMNS: gl.constexpr, MMA: gl.constexpr, ACROSS: gl.constexpr):
    """Inputs 32 i .. 32 i + 31 of a group of x in shared memory -> an operand [32, columns].

    What a warp reads at once is 512 bytes in a row: no two threads want one bank at a time.
    ACROSS: of two neighbouring warps one has the first 8 columns, one the others if there are 16.
    """
    WIDE: gl.constexpr = COLUMNS == 16
    X: gl.constexpr = gl.DistributedLinearLayout(
        [[0, 1], [0, 2], [0, 4]] + ([[8, 0]] if WIDE and not ACROSS else []),
        [[0, 8], [0, 16], [1, 0], [2, 0], [4, 0]],
        [[8, 0] if WIDE and ACROSS else [0, 0], [0, 0]],
        [],
        [COLUMNS, _WORDS],
    )
    FLAT: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    x = viewed(x, gl.bfloat16, [_PARTS, COLUMNS, _WORDS], FLAT)
    return as_operand(x.index(i).load(X), 1, MMA)


@gluon.jit
def make_ready(ready, full, empty, turns, summed, STAGES: gl.constexpr):
    """Set up the barriers that all wait for, by one warp: for four, Triton would put a barrier of
    threads between any two.
    """
    for i in range(0, STAGES):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=1)
    PARTS: gl.constexpr = turns.shape[0]
    for i in gl.static_range(PARTS):
        mbarrier.init(turns.index(i), count=1)
    mbarrier.init(summed, count=PARTS)
    fence_async_shared()
    mbarrier.arrive(ready, count=1)


@gluon.jit
def fetch_sums(part: gl.constexpr, ts, sums_ptr, first, units, groups, rows, summed):
    """Bring the given sums of `units` groups from `first` on, round about and as many as fit: each
    consumer a share of them.
    """
    PARTS: gl.constexpr = ts.shape[0]
    SHARE: gl.constexpr = ts.shape[1]
    COLUMNS: gl.constexpr = ts.shape[2]
    T: gl.constexpr = gl.BlockedLayout([1, 1], [32 // COLUMNS, COLUMNS], [4, 1], [1, 0])
    held = gl.minimum(units, PARTS * SHARE)
    h = part * SHARE + gl.arange(0, SHARE, gl.SliceLayout(1, T))[:, None]
    col = gl.arange(0, COLUMNS, gl.SliceLayout(0, T))[None, :]
    g = (first + h) % groups
    copy(ts.index(part), sums_ptr + col * groups + g, (h < held) & (col < rows))
    async_copy.commit_group()
    async_copy.wait_group(0)
    mbarrier.arrive(summed, count=1)
    mbarrier.wait(summed, 0)


@gluon.jit
def shares_of(squares_ptr, rows, groups, GROUPS: gl.constexpr, COLUMNS: gl.constexpr):
    """Shares of the rows' mean squares [COLUMNS, GROUPS]; a warp has whole rows."""
    L: gl.constexpr = gl.BlockedLayout([1, GROUPS // 32], [1, 32], [4, 1], [1, 0])
    row = gl.arange(0, COLUMNS, gl.SliceLayout(1, L))[:, None]
    g = gl.arange(0, GROUPS, gl.SliceLayout(0, L))[None, :]
    return gl.load(squares_ptr + row * groups + g, mask=(row < rows) & (g < groups), other=0.0)


@gluon.jit
def unit_of(shares):
    """1 / rms of the rows, from their shares."""
    total = gl.sum(shares, axis=1)
    return gl.rsqrt(gl.where(total > 0, total, 1.0))


@gluon.jit
def accumulated(pair, total, d, acc):
    """acc + s d + (m - 128 s) total of a group, with scale s and minimum m of each output row."""
    scale = (pair << 16).to(gl.float32, bitcast=True)
    minimum = (pair & -65536).to(gl.float32, bitcast=True)
    offset = gl.fma(scale, gl.full_like(scale, -128.0), minimum)
    if len(acc.shape) == 3:
        offset, scale = offset[:, :, None], scale[:, :, None]
    else:
        offset, scale = offset[:, None], scale[:, None]
    acc = gl.fma(gl.broadcast(offset, acc)[0], total, acc)
    return gl.fma(gl.broadcast(scale, acc)[0], d, acc)


@gluon.jit
def all_inputs(x, COLUMNS: gl.constexpr, MMA: gl.constexpr, ACROSS: gl.constexpr):
    return (
        inputs_of(x, 0, COLUMNS, MMA, ACROSS),
        inputs_of(x, 1, COLUMNS, MMA, ACROSS),
        inputs_of(x, 2, COLUMNS, MMA, ACROSS),
        inputs_of(x, 3, COLUMNS, MMA, ACROSS),
    )


@gluon.jit
def product(q, x, acc):
    """acc + q x over a group of inputs, each given as four operands."""
    q0, q1, q2, q3 = q
    x0, x1, x2, x3 = x
    acc = mma_v2(q0, x0, acc)
    acc = mma_v2(q1, x1, acc)
    acc = mma_v2(q2, x2, acc)
    return mma_v2(q3, x3, acc)


@gluon.jit
def multiplied(words, pairs, tile: gl.constexpr, x, total, acc, MMA: gl.constexpr):
    """acc [64, columns] + a tile times a group of x; `total` is the group's sum of each column."""
    COLUMNS: gl.constexpr = acc.shape[1]
    W: gl.constexpr = gl.DistributedLinearLayout(
        [[0, 1], [0, 2], [0, 4], [8, 0]],
        [[0, 8], [0, 16], [1, 0], [2, 0], [4, 0]],
        [[16, 0], [32, 0]],
        [],
        [_ROWS, _WORDS],
    )
    q = unpack(words.index(tile).load(W), MMA)
    pair = pairs.index(tile).load(gl.SliceLayout(1, MMA))
    d = product(q, x, gl.zeros([_ROWS, COLUMNS], gl.float32, MMA))
    return accumulated(pair, total, d, acc)


@gluon.jit
def gated(gate, up, dtype: gl.constexpr):
    """silu(gate) up, rounded as the operators of its parts round."""
    gate = rounded(gate, dtype)
    return rounded(rounded(silu(gate), dtype) * rounded(up, dtype), dtype)


@gluon.jit
def next_unit(block, group, groups):
    ends = group + 1 == groups
    return gl.where(ends, block + 1, block), gl.where(ends, 0, group + 1)


@gluon.jit
def bring_x(x_rows, xs, bar, stage, group):
    bulk_copy(x_rows, [group * _PARTS, 0, 0], bar, xs.index(stage))


@gluon.jit
def next_stage(stage, phase, STEP: gl.constexpr, STAGES: gl.constexpr):
    over = stage + STEP >= STAGES
    return gl.where(over, stage + STEP - STAGES, stage + STEP), gl.where(over, phase ^ 1, phase)


@gluon.jit
def first_room(units, AHEAD: gl.constexpr, STAGES: gl.constexpr):
    """Where unit AHEAD goes: its stage, `phase` for `wait_room`. At first all are given back."""
    return units * 0 + AHEAD % STAGES, units * 0 + 1 - AHEAD // STAGES


@gluon.jit
def wait_room(full, empty, stage, phase, AHEAD: gl.constexpr, STAGES: gl.constexpr):
    """Until `stage` is given back and the unit AHEAD before the one that goes there has come."""
    mbarrier.wait(empty.index(stage), phase)
    if AHEAD < STAGES:
        over = stage < AHEAD
        earlier = gl.where(over, stage + STAGES - AHEAD, stage - AHEAD)
        mbarrier.wait(full.index(earlier), gl.where(over, phase, phase ^ 1))


@gluon.jit
def wait_turn(part: gl.constexpr, turns, number):
    """Until the consumer before has left its sums; the first: until the last has taken the old."""
    parity = (number & 1) ^ (1 if part == 0 else 0)
    mbarrier.wait(turns.index(part), parity)


@gluon.jit
def added_up(part: gl.constexpr, mail, acc, PARTS: gl.constexpr, L: gl.constexpr):
    """Sums of the consumers up to this one; the next finds them where they were."""
    if part > 0:
        acc = mail.load(L) + acc
    if part < PARTS - 1:
        mail.store(acc)
    return acc


@gluon.jit
def pass_turn(part: gl.constexpr, turns):
    barrier()  # all threads of this consumer are done with the sums
    PARTS: gl.constexpr = turns.shape[0]
    mbarrier.arrive(turns.index((part + 1) % PARTS), count=1)


WORDS_LAYOUT = gl.NVMMASharedLayout(0, 32, 5)
X_LAYOUT = gl.NVMMASharedLayout(0, 16, 3)


def columns_for(rows: int) -> int:
    return 8 if rows <= 8 else MAX_ROWS


def by_words(x: Tensor, rows: int) -> TensorDescriptor:
    """x [n, k] as [k / 32, n, 32], read by a group of `rows` rows."""
    n, k = x.shape
    view = x.as_strided((k // WORDS, n, WORDS), (WORDS, k, 1))
    return TensorDescriptor.from_tensor(view, [GROUP // WORDS, rows, WORDS], X_LAYOUT)


def by_blocks(tiles: Tensor, tall: int, halves: int) -> tuple[TensorDescriptor, TensorDescriptor]:
    """Words and parameters, read by `tall` tiles of one group, as many of each half of the rows.

    int32 [halves, row tiles, groups, 17, 64]: sixteen lines of words, one of parameters.
    """
    row_tiles, groups = tiles.shape[:2]
    view = tiles.view(torch.int32).view(halves, row_tiles // halves, groups, LINES // 4, 64)
    box = [halves, tall // halves, 1]
    words, pairs = ([*box, lines, 64] for lines in (16, 1))
    return (
        TensorDescriptor.from_tensor(view, words, WORDS_LAYOUT),
        TensorDescriptor.from_tensor(view, pairs, WORDS_LAYOUT),
    )
