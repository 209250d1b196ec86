"""A dense matrix beside int4 blocks: 32 of its rows to a program, in the ring that int4 ones use.

Its groups are added one after another by each consumer, then the consumers' sums: that order is
numerics. How many rows a program has, and which warp which of them, is not.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import mma_v2
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from kernels.gluon_names import viewed
from kernels.int4_matmul.gluon_parts import (
    CONSUMERS,
    added_up,
    all_inputs,
    as_operand,
    next_stage,
    pass_turn,
    wait_turn,
)
from kernels.int4_matmul.layout import GROUP, WORDS

BESIDE_ROWS = 32  # of the dense matrix, per program

_WORDS = gl.constexpr(WORDS)
_PARTS = gl.constexpr(GROUP // WORDS)  # of a group of inputs, one of each nibble
_CONSUMERS = gl.constexpr(CONSUMERS)
_LAST = gl.constexpr(CONSUMERS - 1)
_BESIDE_ROWS = gl.constexpr(BESIDE_ROWS)


@gluon.jit
def multiply_beside(
    part: gl.constexpr,
    z_ptr,
    memory,
    piece,
    sizes,
    SCALED: gl.constexpr,
    COLUMNS: gl.constexpr,
    STAGES: gl.constexpr,
):
    """Every other group of 32 rows of the dense matrix; two warps in a row share 16 of them."""
    xs, ts, scales, mail, words, pairs, full, empty, turns = memory
    rows, n, groups = sizes
    MMA: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [2, 2], [16, 8])
    W: gl.constexpr = gl.DistributedLinearLayout(
        [[0, 1], [0, 2], [0, 4], [8, 0]],
        [[0, 8], [0, 16], [1, 0], [2, 0], [4, 0]],
        [[0, 0], [16, 0]],
        [],
        [_BESIDE_ROWS, _WORDS],
    )
    FLAT: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    acc = gl.zeros([_BESIDE_ROWS, COLUMNS], gl.float32, MMA)
    stage = part
    phase = 0
    for _ in range(part, groups, _CONSUMERS):
        mbarrier.wait(full.index(stage), phase)
        x0, x1, x2, x3 = all_inputs(xs.index(stage), COLUMNS, MMA, True)
        w = viewed(words.index(stage), gl.bfloat16, [_PARTS, _BESIDE_ROWS, _WORDS], FLAT)
        acc = mma_v2(as_operand(w.index(0).load(W), 0, MMA), x0, acc)
        acc = mma_v2(as_operand(w.index(1).load(W), 0, MMA), x1, acc)
        acc = mma_v2(as_operand(w.index(2).load(W), 0, MMA), x2, acc)
        acc = mma_v2(as_operand(w.index(3).load(W), 0, MMA), x3, acc)
        mbarrier.arrive(empty.index(stage), count=1)
        stage, phase = next_stage(stage, phase, _CONSUMERS, STAGES)
    wait_turn(part, turns, 0)
    mail = viewed(mail, gl.float32, [4, _BESIDE_ROWS, COLUMNS], FLAT)
    acc = added_up(part, mail.index(0), acc, _CONSUMERS, MMA)
    pass_turn(part, turns)
    if part == _LAST:
        out = piece * _BESIDE_ROWS + gl.arange(0, _BESIDE_ROWS, gl.SliceLayout(1, MMA))[:, None]
        col = gl.arange(0, COLUMNS, gl.SliceLayout(0, MMA))
        if SCALED:
            acc = acc * gl.broadcast(scales.load(gl.SliceLayout(0, MMA))[None, :], acc)[0]
        col = col[None, :]
        z = acc.to(z_ptr.dtype.element_ty)
        gl.store(z_ptr + col * n + out, z, mask=(col < rows) & (out < n))
