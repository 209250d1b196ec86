"""Int4 matmul, residual sum and norm for Hopper: all of a row's sum in one program.

A program has 8 rows of each of five tiles that follow one another, and all inputs: 40 output rows,
so that 128 programs have the 5120 of the 27B, and none waits for another. Of a tile 8 rows are 512
bytes in a row, and eight programs share it at about the same time.

The ring is that of gluon_ring.py, a unit four groups of inputs. Four consumers take the units in
turn, each of its four warps one group. Their sums meet in shared memory, in order, where the last
consumer finishes the rows: it leaves the share of its rows in the squares, and no sums by group,
which it does not see whole. Programs of other tiles begin at other inputs, so that not all of them
want the same of x at once.
"""

import torch
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import mma_v2
from triton.experimental.gluon.language.nvidia.hopper import mbarrier
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from kernels.gpu import dependent_launch, let_next_start, wait_for_inputs
from kernels.int4_matmul.gluon_parts import (
    CONSUMERS,
    SHARED,
    accumulated,
    as_operand,
    barrier,
    bulk_copy,
    columns_for,
    next_stage,
    unpack,
    viewed,
)
from kernels.int4_matmul.layout import GROUP, LINES, ROWS, WORDS
from kernels.rounding import rounded

TILES = 5  # of which a program has a run each
RUN = 8  # rows
UNIT = 4  # groups, one for each warp of a consumer
MOST_STAGES = 11
MAIL = 4  # rooms of 16 rows that a consumer leaves sums in; a power of two

_WORDS = gl.constexpr(WORDS)
_TILES = gl.constexpr(TILES)
_RUN = gl.constexpr(RUN)
_RUNS = gl.constexpr(ROWS // RUN)
_ROWS = gl.constexpr(ROWS)
_UNIT = gl.constexpr(UNIT)
_PARTS = gl.constexpr(GROUP // WORDS)
_CONSUMERS = gl.constexpr(CONSUMERS)
_MAIL = gl.constexpr(MAIL)
_LAST = gl.constexpr(CONSUMERS - 1)
_WEIGHTS = gl.constexpr(TILES * UNIT * RUN * (2 * WORDS + 4))  # bytes of a unit


@gluon.jit
def _twice(run, other):
    """The last tile has no neighbour to fill 16 rows with: the same 8 again, for nobody."""
    return gl.broadcast(run, other)[0]


@gluon.jit
def _multiplied(words, pair, x, total, acc, MMA: gl.constexpr):
    """acc [groups, 16, columns] + words [2 runs, groups, 8, 32] times x, of each group alone."""
    x0, x1, x2, x3 = x
    COLUMNS: gl.constexpr = acc.shape[2]
    words = words.permute(1, 0, 2, 3).reshape(_UNIT, 2 * _RUN, _WORDS)
    pair = pair.permute(1, 0, 2).reshape(_UNIT, 2 * _RUN)
    pair = gl.convert_layout(pair, gl.SliceLayout(2, MMA), assert_trivial=True)
    q0, q1, q2, q3 = unpack(words, MMA)
    d = mma_v2(q0, x0, gl.zeros([_UNIT, 2 * _RUN, COLUMNS], gl.float32, MMA))
    d = mma_v2(q1, x1, d)
    d = mma_v2(q2, x2, d)
    d = mma_v2(q3, x3, d)
    return accumulated(pair, total, d, acc)


@gluon.jit
def _inputs(x, i: gl.constexpr, X: gl.constexpr, MMA: gl.constexpr):
    """Inputs 32 i .. 32 i + 31 of each group -> an operand [groups, 32, columns]."""
    FLAT: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [2, 1, 0])
    COLUMNS: gl.constexpr = x.shape[2]
    x = viewed(x, gl.bfloat16, [_PARTS, _UNIT, COLUMNS, _WORDS], FLAT)
    return as_operand(x.index(i).load(X), 1, MMA)


@gluon.jit
def _consume(
    part: gl.constexpr,
    pointers,
    memory,
    sizes,
    COLUMNS: gl.constexpr,
    STAGES: gl.constexpr,
    PDL: gl.constexpr,
):
    """Multiply every fourth unit and leave the sums; the last consumer finishes the rows."""
    xs, words, pairs, fifth_words, fifth_pairs, mail, full, empty, done = memory
    rows, units, n, eps = sizes
    MMA: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [_UNIT, 1, 1], [1, 16, 8])
    W: gl.constexpr = gl.DistributedLinearLayout(
        [[0, 0, 0, 1], [0, 0, 0, 2], [0, 0, 0, 4], [1, 0, 0, 0]],
        [[0, 0, 0, 8], [0, 0, 0, 16], [0, 0, 1, 0], [0, 0, 2, 0], [0, 0, 4, 0]],
        [[0, 1, 0, 0], [0, 2, 0, 0]],
        [],
        [2, _UNIT, _RUN, _WORDS],
    )
    P: gl.constexpr = gl.DistributedLinearLayout(
        [[1, 0, 0]],
        [[0, 0, 0], [0, 0, 0], [0, 0, 1], [0, 0, 2], [0, 0, 4]],
        [[0, 1, 0], [0, 2, 0]],
        [],
        [2, _UNIT, _RUN],
    )
    X: gl.constexpr = gl.DistributedLinearLayout(
        [[0, 0, 1], [0, 0, 2], [0, 0, 4]] + ([[0, 8, 0]] if COLUMNS == 16 else []),
        [[0, 0, 8], [0, 0, 16], [0, 1, 0], [0, 2, 0], [0, 4, 0]],
        [[1, 0, 0], [2, 0, 0]],
        [],
        [_UNIT, COLUMNS, _WORDS],
    )
    FLAT3: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [2, 1, 0])
    FLAT4: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [3, 2, 1, 0])
    FLAT2: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    A: gl.constexpr = gl.DotOperandLayout(0, MMA, 2)
    ones = gl.full([_UNIT, 2 * _RUN, _WORDS], 1.0, gl.bfloat16, A)
    zero = gl.zeros([_UNIT, 2 * _RUN, COLUMNS], gl.float32, MMA)
    two_runs = gl.zeros([2, _UNIT, _RUN, _WORDS], gl.int16, W)
    two_pairs = gl.zeros([2, _UNIT, _RUN], gl.int32, P)
    wait_for_inputs(PDL)
    a0 = zero
    a1 = zero
    a2 = zero
    stage = part
    phase = 0
    for _ in range(part, units, _CONSUMERS):
        mbarrier.wait(full.index(stage), phase)
        at = xs.index(stage)
        x = (
            _inputs(at, 0, X, MMA),
            _inputs(at, 1, X, MMA),
            _inputs(at, 2, X, MMA),
            _inputs(at, 3, X, MMA),
        )
        x0, x1, x2, x3 = x
        total = mma_v2(ones, x0, zero)
        total = mma_v2(ones, x1, total)
        total = mma_v2(ones, x2, total)
        total = mma_v2(ones, x3, total)
        w = viewed(words.index(stage), gl.int16, [2, 2, _UNIT, _RUN, _WORDS], FLAT4)
        p = viewed(pairs.index(stage), gl.int32, [2, 2, _UNIT, _RUN], FLAT3)
        a0 = _multiplied(w.index(0).load(W), p.index(0).load(P), x, total, a0, MMA)
        a1 = _multiplied(w.index(1).load(W), p.index(1).load(P), x, total, a1, MMA)
        w = viewed(fifth_words.index(stage), gl.int16, [_UNIT, _RUN, _WORDS], FLAT3)
        p = viewed(fifth_pairs.index(stage), gl.int32, [_UNIT, _RUN], FLAT2)
        w = _twice(w.load(gl.SliceLayout(0, W))[None, :, :, :], two_runs)
        p = _twice(p.load(gl.SliceLayout(0, P))[None, :, :], two_pairs)
        a2 = _multiplied(w, p, x, total, a2, MMA)
        mbarrier.arrive(empty.index(stage), count=1)  # all that was read is in use
        stage, phase = next_stage(stage, phase, _CONSUMERS, STAGES)
    # of 16 rows at once, by columns
    mail.index(part * _MAIL).store(gl.sum(a0, axis=0).permute(1, 0))
    mail.index(part * _MAIL + 1).store(gl.sum(a1, axis=0).permute(1, 0))
    mail.index(part * _MAIL + 2).store(gl.sum(a2, axis=0).permute(1, 0))
    barrier()  # all threads' sums before the arrival
    mbarrier.arrive(done, count=1)
    if part == _LAST:
        _finish(pointers, mail, done, rows, n, eps, COLUMNS)


@gluon.jit
def _finish(pointers, mail, done, rows, n, eps, COLUMNS: gl.constexpr):
    """Add the consumers' sums and the residual; write the rows and their share of the squares."""
    residual_ptr, gain_ptr, y_ptr, normed_ptr, squares_ptr = pointers
    dtype: gl.constexpr = y_ptr.dtype.element_ty
    L: gl.constexpr = gl.BlockedLayout([2, COLUMNS // 4, 1], [2, 1, 16], [1, 4, 1], [2, 0, 1])
    COL: gl.constexpr = gl.SliceLayout(0, gl.SliceLayout(2, L))
    m = gl.arange(0, _MAIL, gl.SliceLayout(1, gl.SliceLayout(2, L)))[:, None][:, :, None]
    col = gl.arange(0, COLUMNS, COL)[None, :][:, :, None]
    i = gl.arange(0, 2 * _RUN, gl.SliceLayout(0, gl.SliceLayout(1, L)))[None, :][:, None, :]
    share = gl.program_id(0)
    tile = 2 * m + i // _RUN
    out = (share // _RUNS * _TILES + tile) * _ROWS + share % _RUNS * _RUN + i % _RUN
    live = (tile < _TILES) & (col < rows)
    at = col * n + out
    s = gl.load(residual_ptr + at, mask=live, other=0.0).to(gl.float32)
    gain = gl.load(gain_ptr + out + col * 0, mask=live, other=0.0).to(gl.float32)
    FLAT: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [2, 1, 0])
    mail = viewed(mail, gl.float32, [_CONSUMERS, _MAIL, COLUMNS, 2 * _RUN], FLAT)
    mbarrier.wait(done, 0)
    total = mail.index(0).load(L)
    total += mail.index(1).load(L)
    total += mail.index(2).load(L)
    total += mail.index(3).load(L)
    s = rounded(s + rounded(gl.where(live, total, 0.0), dtype), dtype)
    gl.store(y_ptr + at, s.to(dtype), mask=live)
    gl.store(normed_ptr + at, (s * (1.0 + gain)).to(dtype), mask=live)
    squares = gl.sum(gl.sum(s * s, axis=2), axis=0) / n + gl.where(share == 0, eps, 0.0)
    one = gl.arange(0, COLUMNS, COL)
    gl.store(squares_ptr + one * gl.num_programs(0) + share, squares, mask=one < rows)


@gluon.jit
def _bring_weights(sources, room, bar, stage, unit, COLUMNS: gl.constexpr):
    """Start a unit: its weights; the barrier waits for its x too."""
    words_tiles, pairs_tiles, fifth_words_tile, fifth_pairs_tile, x_rows = sources
    xs, words, pairs, fifth_words, fifth_pairs = room
    tile = gl.program_id(0) // _RUNS * _TILES
    run = gl.program_id(0) % _RUNS
    lines: gl.constexpr = words_tiles.block_type.shape[2]
    group = unit * _UNIT
    row = run * _RUN
    end = _RUNS * lines
    mbarrier.expect(bar, _WEIGHTS + COLUMNS * _UNIT * _PARTS * 2 * _WORDS)
    bulk_copy(words_tiles, [tile, group, run * lines, 0], bar, words.index(stage))
    bulk_copy(pairs_tiles, [tile, group, end, row], bar, pairs.index(stage))
    bulk_copy(fifth_words_tile, [tile + 4, group, run * lines, 0], bar, fifth_words.index(stage))
    bulk_copy(fifth_pairs_tile, [tile + 4, group, end, row], bar, fifth_pairs.index(stage))


@gluon.jit
def _produce(
    sources,
    room,
    full,
    empty,
    first,
    units,
    COLUMNS: gl.constexpr,
    STAGES: gl.constexpr,
    PDL: gl.constexpr,
):
    """Bring x of the first units, then units as stages become free."""
    words_tiles, pairs_tiles, fifth_words_tile, fifth_pairs_tile, x_rows = sources
    xs, words, pairs, fifth_words, fifth_pairs = room
    wait_for_inputs(PDL)
    for i in range(0, gl.minimum(units, STAGES)):
        unit = (first + i) % units
        bulk_copy(x_rows, [0, unit * _UNIT, 0, 0], full.index(i), xs.index(i))
    stage = 0
    phase = 0
    for i in range(STAGES, units):
        mbarrier.wait(empty.index(stage), phase)
        unit = (first + i) % units
        bar = full.index(stage)
        _bring_weights(sources, room, bar, stage, unit, COLUMNS)
        bulk_copy(x_rows, [0, unit * _UNIT, 0, 0], bar, xs.index(stage))
        stage, phase = next_stage(stage, phase, 1, STAGES)


@gluon.jit(do_not_specialize=["rows"])
def _int4_add_norm_gluon(
    x_rows,  # x as [parts of a group, groups, rows, 32], four groups of COLUMNS rows at once
    words_tiles,  # the tiles as int32 [row tiles, groups, 17, 64], a run of four of them at once
    pairs_tiles,  # the same, the parameters of a run
    fifth_words_tile,  # the same, of one tile at once
    fifth_pairs_tile,
    residual_ptr,  # [rows, n]
    gain_ptr,  # [n]
    y_ptr,  # [rows, n]
    normed_ptr,  # [rows, n]
    squares_ptr,  # [rows, programs] fp32
    rows,
    n,
    units,
    eps,
    COLUMNS: gl.constexpr,  # 8 or 16, at least `rows`
    STAGES: gl.constexpr,
    PDL: gl.constexpr,
):
    let_next_start(PDL)
    xs = gl.allocate_shared_memory(gl.bfloat16, [STAGES] + x_rows.block_type.shape, x_rows.layout)
    words = gl.allocate_shared_memory(
        gl.int32, [STAGES] + words_tiles.block_type.shape, words_tiles.layout
    )
    pairs = gl.allocate_shared_memory(
        gl.int32, [STAGES] + pairs_tiles.block_type.shape, pairs_tiles.layout
    )
    fifth_words = gl.allocate_shared_memory(
        gl.int32, [STAGES] + fifth_words_tile.block_type.shape, fifth_words_tile.layout
    )
    fifth_pairs = gl.allocate_shared_memory(
        gl.int32, [STAGES] + fifth_pairs_tile.block_type.shape, fifth_pairs_tile.layout
    )
    FLAT: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    mail = gl.allocate_shared_memory(gl.float32, [_CONSUMERS * _MAIL, COLUMNS, 2 * _RUN], FLAT)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    done = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=1)
    mbarrier.init(done, count=_CONSUMERS)
    barrier()
    sources = (words_tiles, pairs_tiles, fifth_words_tile, fifth_pairs_tile, x_rows)
    room = (xs, words, pairs, fifth_words, fifth_pairs)
    first = gl.program_id(0) // _RUNS * units // (gl.num_programs(0) // _RUNS)
    for i in range(0, gl.minimum(units, STAGES)):  # weights: constants, ahead of any wait
        _bring_weights(sources, room, full.index(i), i, (first + i) % units, COLUMNS)
    pointers = (residual_ptr, gain_ptr, y_ptr, normed_ptr, squares_ptr)
    memory = (xs, words, pairs, fifth_words, fifth_pairs, mail, full, empty, done)
    sizes = (rows, units, n, eps)
    gl.warp_specialize(
        [
            (_consume, (0, pointers, memory, sizes, COLUMNS, STAGES, PDL)),
            (_consume, (1, pointers, memory, sizes, COLUMNS, STAGES, PDL)),
            (_consume, (2, pointers, memory, sizes, COLUMNS, STAGES, PDL)),
            (_consume, (3, pointers, memory, sizes, COLUMNS, STAGES, PDL)),
            (_produce, (sources, room, full, empty, first, units, COLUMNS, STAGES, PDL)),
        ],
        [4, 4, 4, 1],
        [112, 112, 112, 32],
    )


def _by_groups(x: Tensor, rows: int) -> TensorDescriptor:
    """x [n, k] as [parts of a group, groups, n, 32], read by all parts of a unit's groups."""
    n, k = x.shape
    view = x.as_strided((GROUP // WORDS, k // GROUP, n, WORDS), (WORDS, GROUP, k, 1))
    layout = gl.NVMMASharedLayout(0, 16, 4)
    return TensorDescriptor.from_tensor(view, [GROUP // WORDS, UNIT, rows, WORDS], layout)


def launch(
    x: Tensor,
    tiles: Tensor,
    residual: Tensor,
    gain: Tensor,
    eps: float,
    y: Tensor,
    normed: Tensor,
    squares: Tensor,
) -> None:
    """squares [rows, programs]; a program has 40 of the output rows, so many that none is left."""
    row_tiles, groups = tiles.shape[:2]
    columns = columns_for(x.shape[0])
    lines = tiles.view(torch.int32).view(row_tiles, groups, LINES // 4, 64)
    per_run = RUN * WORDS // 2 // 64  # lines of 64
    layout = gl.NVMMASharedLayout(0, 32, 4)
    boxes = [[tall, UNIT, *box] for tall in (4, 1) for box in ((per_run, 64), (1, RUN))]
    unit = TILES * UNIT * RUN * (2 * WORDS + 4) + 2 * columns * UNIT * GROUP
    stages = (SHARED - 4 * CONSUMERS * MAIL * columns * 2 * RUN) // unit
    overlap = dependent_launch(x.device)
    _int4_add_norm_gluon[(squares.shape[1],)](
        _by_groups(x, columns),
        *(TensorDescriptor.from_tensor(lines, box, layout) for box in boxes),
        residual,
        gain,
        y,
        normed,
        squares,
        x.shape[0],
        residual.shape[1],
        -(-groups // UNIT),
        eps,
        COLUMNS=columns,
        STAGES=min(MOST_STAGES, stages),
        PDL=overlap,
        launch_pdl=overlap,
        num_warps=4,
    )
