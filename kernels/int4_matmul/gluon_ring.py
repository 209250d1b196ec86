"""Int4 matmul for Hopper: whole blocks of output rows a program, which no other program knows of.

A producer warp fills a ring in shared memory, a few units at a time (UNDER_WAY). A stage is one
unit: the tiles of a block (4 or 2 of 64 rows) by one group, words and parameters, and that group of
x, brought by bulk copies that an mbarrier counts. Two consumers of four warps take the units in
turn. Each turns all words of its unit into tensor core operands in registers (128 + code, as in
triton.py) and gives the stage back: so x is read once for all rows of a block, and while one
unpacks another multiplies. The first weights do not wait for the kernel before. Sums of x that are
not given are one more product, with ones.

At the end of a block the consumers add their sums one after another, in shared memory, and the last
one finishes the block while the others go on. A dense matrix beside is dealt by 32 rows to programs
of their own, which use the ring as the others do.
"""

from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from kernels.gluon_names import barrier, bulk_copy, viewed
from kernels.gpu import dependent_launch, let_next_start, power_of_two, wait_for_inputs
from kernels.int4_matmul.gluon_beside import BESIDE_ROWS, multiply_beside
from kernels.int4_matmul.gluon_parts import (
    CONSUMERS,
    MOST_STAGES,
    SHARED,
    UNDER_WAY,
    added_up,
    all_inputs,
    bring_x,
    by_blocks,
    by_words,
    columns_for,
    fetch_sums,
    first_room,
    gated,
    make_ready,
    multiplied,
    next_stage,
    next_unit,
    pass_turn,
    product,
    shares_of,
    unit_of,
    wait_room,
    wait_turn,
)
from kernels.int4_matmul.layout import GROUP, ROWS, TILE, WORDS

_ROWS = gl.constexpr(ROWS)
_WORDS = gl.constexpr(WORDS)
_GROUP = gl.constexpr(GROUP)
_PARTS = gl.constexpr(GROUP // WORDS)  # of a group of inputs, one of each nibble
_CONSUMERS = gl.constexpr(CONSUMERS)
_LAST = gl.constexpr(CONSUMERS - 1)
_BESIDE_ROWS = gl.constexpr(BESIDE_ROWS)
_TILE_BYTES = gl.constexpr(2 * TILE)


@gluon.jit
def _write(y_ptr, acc, first, rows, n, COLUMNS: gl.constexpr, MMA: gl.constexpr):
    """y[:, first .. first + 63] from a tile's sums."""
    out = first + gl.arange(0, _ROWS, gl.SliceLayout(1, MMA))[:, None]
    col = gl.arange(0, COLUMNS, gl.SliceLayout(0, MMA))[None, :]
    gl.store(y_ptr + col * n + out, acc.to(y_ptr.dtype.element_ty), mask=(col < rows) & (out < n))


@gluon.jit
def _finish(
    sums,
    unit,
    block,
    y_ptr,
    out_sums_ptr,
    rows,
    n,
    GATE_UP: gl.constexpr,
    TILES: gl.constexpr,
    COLUMNS: gl.constexpr,
    MMA: gl.constexpr,
):
    """Write what the form asks for, from the sums of a block's tiles."""
    dtype: gl.constexpr = y_ptr.dtype.element_ty
    a0, a1, a2, a3 = sums
    a0 = a0 * unit
    a1 = a1 * unit
    if TILES == 4:
        a2 = a2 * unit
        a3 = a3 * unit
    if GATE_UP:
        h0 = gated(a0, a2, dtype)
        h1 = gated(a1, a3, dtype)
        _write(y_ptr, h0, block * _GROUP, rows, n, COLUMNS, MMA)
        _write(y_ptr, h1, block * _GROUP + _ROWS, rows, n, COLUMNS, MMA)
        col = gl.arange(0, COLUMNS, gl.SliceLayout(0, MMA))
        share = gl.sum(h0 + h1, axis=0)
        gl.store(out_sums_ptr + col * (n // _GROUP) + block, share, mask=col < rows)
    else:
        first = block * (TILES * _ROWS)
        _write(y_ptr, a0, first, rows, n, COLUMNS, MMA)
        _write(y_ptr, a1, first + _ROWS, rows, n, COLUMNS, MMA)
        if TILES == 4:
            _write(y_ptr, a2, first + 2 * _ROWS, rows, n, COLUMNS, MMA)
            _write(y_ptr, a3, first + 3 * _ROWS, rows, n, COLUMNS, MMA)


@gluon.jit
def _multiply(
    part: gl.constexpr,
    pointers,
    memory,
    deal,
    sizes,
    GATE_UP: gl.constexpr,
    TILES: gl.constexpr,
    SUMS: gl.constexpr,
    SCALED: gl.constexpr,
    COLUMNS: gl.constexpr,
    STAGES: gl.constexpr,
):
    """Every other unit of int4 weights, and the ends of blocks.

    Part `part` takes the units part, part + 2 and so on of the program, whatever block they are of.
    """
    y_ptr, out_sums_ptr = pointers
    xs, ts, scales, mail, words, pairs, full, empty, turns = memory
    own, whole = deal
    rows, n, groups = sizes
    MMA: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [4, 1], [16, 8])
    C: gl.constexpr = gl.SliceLayout(0, MMA)
    FLAT: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    LINE: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    totals = viewed(ts, gl.float32, [_CONSUMERS * ts.shape[1], COLUMNS], LINE)
    A: gl.constexpr = gl.DotOperandLayout(0, MMA, 2)
    ones = gl.full([_ROWS, _WORDS], 1.0, gl.bfloat16, A)
    zero = gl.zeros([_ROWS, COLUMNS], gl.float32, MMA)
    stage = part
    phase = 0
    for number in range(0, whole):
        # of the block; not carried from one to the next: Triton 3.6 loses a count whose last value
        # is not read
        unit = (part - number * groups) & _LAST
        a0 = zero
        a1 = zero
        a2 = zero
        a3 = zero
        mine = (groups - unit + _LAST) // _CONSUMERS
        for i in range(0, mine):
            mbarrier.wait(full.index(stage), phase)
            x = all_inputs(xs.index(stage), COLUMNS, MMA, False)
            if SUMS:
                at = unit + i * _CONSUMERS
                total = gl.broadcast(totals.index(at).load(C)[None, :], zero)[0]
            else:
                total = product((ones, ones, ones, ones), x, zero)
            w = viewed(words.index(stage), gl.int16, [TILES, _ROWS, _WORDS], FLAT)
            pair = viewed(pairs.index(stage), gl.int32, [TILES, _ROWS], LINE)
            a0 = multiplied(w, pair, 0, x, total, a0, MMA)
            a1 = multiplied(w, pair, 1, x, total, a1, MMA)
            if TILES == 4:
                a2 = multiplied(w, pair, 2, x, total, a2, MMA)
                a3 = multiplied(w, pair, 3, x, total, a3, MMA)
            mbarrier.arrive(empty.index(stage), count=1)  # all that was read is in use
            stage, phase = next_stage(stage, phase, _CONSUMERS, STAGES)
        wait_turn(part, turns, number)
        a0 = added_up(part, mail.index(0), a0, _CONSUMERS, MMA)
        a1 = added_up(part, mail.index(1), a1, _CONSUMERS, MMA)
        if TILES == 4:
            a2 = added_up(part, mail.index(2), a2, _CONSUMERS, MMA)
            a3 = added_up(part, mail.index(3), a3, _CONSUMERS, MMA)
        pass_turn(part, turns)
        if part == _LAST:
            if SCALED:
                one = gl.broadcast(scales.load(C)[None, :], zero)[0]
            else:
                one = gl.full([_ROWS, COLUMNS], 1.0, gl.float32, MMA)
            _finish(
                (a0, a1, a2, a3),
                one,
                own + number,
                y_ptr,
                out_sums_ptr,
                rows,
                n,
                GATE_UP,
                TILES,
                COLUMNS,
                MMA,
            )


@gluon.jit
def _consume(
    part: gl.constexpr,
    given,  # inputs: sums and squares; memory: what stands in shared memory
    # deal: the program's first block and how many it has; piece of the dense matrix, -1: none
    GATE_UP: gl.constexpr,
    TILES: gl.constexpr,
    BESIDE: gl.constexpr,
    SUMS: gl.constexpr,
    SCALED: gl.constexpr,
    GROUPS: gl.constexpr,
    COLUMNS: gl.constexpr,
    STAGES: gl.constexpr,
    PDL: gl.constexpr,
):
    """Fetch what is needed of x's sums and scales, then multiply what the program has."""
    inputs, pointers, z_ptr, memory, ready, summed, deal, piece, sizes, beside_n = given
    sums_ptr, squares_ptr = inputs
    xs, ts, scales, mail, words, pairs, full, empty, turns = memory
    rows, n, groups = sizes
    mbarrier.wait(ready, 0)
    wait_for_inputs(PDL)
    if SUMS:
        fetch_sums(part, ts, sums_ptr, 0, groups, groups, rows, summed)
    if SCALED and part == _LAST:
        scales.store(unit_of(shares_of(squares_ptr, rows, groups, GROUPS, COLUMNS)))
    if BESIDE:
        if piece >= 0:
            multiply_beside(
                part, z_ptr, memory, piece, (rows, beside_n, groups), SCALED, COLUMNS, STAGES
            )
        else:
            _multiply(
                part, pointers, memory, deal, sizes, GATE_UP, TILES, SUMS, SCALED, COLUMNS, STAGES
            )
    else:
        _multiply(
            part, pointers, memory, deal, sizes, GATE_UP, TILES, SUMS, SCALED, COLUMNS, STAGES
        )


@gluon.jit
def _bring_weights(
    sources,
    words,
    pairs,
    bar,
    stage,
    block,
    group,
    piece,
    GATE_UP: gl.constexpr,
    TILES: gl.constexpr,
    BESIDE: gl.constexpr,
    COLUMNS: gl.constexpr,
):
    """Start a unit: its weights; the barrier waits for a group of x too."""
    words_tiles, pairs_tiles, beside_rows, x_rows = sources
    X: gl.constexpr = COLUMNS * 2 * _GROUP
    STEP: gl.constexpr = TILES // 2 if GATE_UP else TILES
    if BESIDE:
        if piece >= 0:
            mbarrier.expect(bar, _BESIDE_ROWS * 2 * _GROUP + X)
            BOX: gl.constexpr = beside_rows.block_type.shape
            room = viewed(words.index(stage), gl.bfloat16, BOX, beside_rows.layout)
            bulk_copy(beside_rows, [group * _PARTS, piece * _BESIDE_ROWS, 0], bar, room)
        else:
            mbarrier.expect(bar, TILES * _TILE_BYTES + X)
            bulk_copy(words_tiles, [0, block * STEP, group, 0, 0], bar, words.index(stage))
            bulk_copy(
                pairs_tiles, [0, block * STEP, group, _WORDS // 2, 0], bar, pairs.index(stage)
            )
    else:
        mbarrier.expect(bar, TILES * _TILE_BYTES + X)
        bulk_copy(words_tiles, [0, block * STEP, group, 0, 0], bar, words.index(stage))
        bulk_copy(pairs_tiles, [0, block * STEP, group, _WORDS // 2, 0], bar, pairs.index(stage))


@gluon.jit
def _produce(
    sources,
    memory,
    ready,
    summed,
    block,  # the program's first
    units,
    groups,
    piece,
    GATE_UP: gl.constexpr,
    TILES: gl.constexpr,
    BESIDE: gl.constexpr,
    COLUMNS: gl.constexpr,
    STAGES: gl.constexpr,
    AHEAD: gl.constexpr,
    PDL: gl.constexpr,
):
    """Bring the first units, of which weights are constants and do not wait for the kernel before;
    then others as stages become free, AHEAD at a time.
    """
    words_tiles, pairs_tiles, beside_rows, x_rows = sources
    xs, ts, scales, mail, words, pairs, full, empty, turns = memory
    make_ready(ready, full, empty, turns, summed, STAGES)
    group = block * 0
    for unit in range(0, gl.minimum(units, AHEAD)):
        bar = full.index(unit)
        _bring_weights(
            sources, words, pairs, bar, unit, block, group, piece, GATE_UP, TILES, BESIDE, COLUMNS
        )
        block, group = next_unit(block, group, groups)
    wait_for_inputs(PDL)
    for unit in range(0, gl.minimum(units, AHEAD)):
        bring_x(x_rows, xs, full.index(unit), unit, unit % groups)
    stage, phase = first_room(units, AHEAD, STAGES)
    for _ in range(AHEAD, units):
        wait_room(full, empty, stage, phase, AHEAD, STAGES)
        bar = full.index(stage)
        _bring_weights(
            sources, words, pairs, bar, stage, block, group, piece, GATE_UP, TILES, BESIDE, COLUMNS
        )
        bring_x(x_rows, xs, bar, stage, group)
        block, group = next_unit(block, group, groups)
        stage, phase = next_stage(stage, phase, 1, STAGES)


@gluon.jit(do_not_specialize=["rows"])
def _int4_ring_gluon(
    x_rows,  # x as [k / 32, rows, 32], a group of COLUMNS rows at once
    words_tiles,  # the tiles as int32 [halves, row tiles, groups, 17, 64], sixteen lines at once
    pairs_tiles,  # the same, one line at once
    beside_rows,  # the dense matrix as [k / 32, rows, 32], a group of 32 rows at once
    sums_ptr,  # [rows, groups] fp32: of x
    squares_ptr,  # [rows, groups] fp32: x counts times rsqrt of their sum
    y_ptr,  # [rows, n]
    z_ptr,  # [rows, beside_n]
    out_sums_ptr,  # [rows, n / 128]
    rows,
    n,
    beside_n,
    blocks: gl.constexpr,  # sizes that a start divides by are constants
    groups: gl.constexpr,
    programs: gl.constexpr,  # after them those of the dense matrix
    GATE_UP: gl.constexpr,
    TILES: gl.constexpr,  # of a block
    BESIDE: gl.constexpr,
    SUMS: gl.constexpr,
    SCALED: gl.constexpr,
    GROUPS: gl.constexpr,  # a power of two, at least `groups` and 32
    COLUMNS: gl.constexpr,  # 8 or 16, at least `rows`
    STAGES: gl.constexpr,
    AHEAD: gl.constexpr,  # units under way at most
    PDL: gl.constexpr,
):
    let_next_start(PDL)
    p = gl.program_id(0)
    own = blocks * p // programs
    whole = blocks * (p + 1) // programs - own
    piece = p * 0 - 1
    if BESIDE:
        if p >= programs:  # one block, of the dense matrix
            piece = p - programs
            own = own * 0
            whole = whole * 0 + 1
    units = whole * groups
    words = gl.allocate_shared_memory(
        gl.int32, [STAGES] + words_tiles.block_type.shape, words_tiles.layout
    )
    pairs = gl.allocate_shared_memory(
        gl.int32, [STAGES] + pairs_tiles.block_type.shape, pairs_tiles.layout
    )
    xs = gl.allocate_shared_memory(gl.bfloat16, [STAGES] + x_rows.block_type.shape, x_rows.layout)
    FLAT: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    LINE: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    SHARE: gl.constexpr = GROUPS // _CONSUMERS if SUMS else 32 // COLUMNS
    ts = gl.allocate_shared_memory(gl.float32, [_CONSUMERS, SHARE, COLUMNS], FLAT)
    scales = gl.allocate_shared_memory(gl.float32, [COLUMNS], LINE)
    mail = gl.allocate_shared_memory(gl.float32, [TILES, _ROWS, COLUMNS], FLAT)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    turns = gl.allocate_shared_memory(gl.int64, [_CONSUMERS, 1], mbarrier.MBarrierLayout())
    summed = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    ready = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(ready, count=1)
    barrier()
    sources = (words_tiles, pairs_tiles, beside_rows, x_rows)
    inputs = (sums_ptr, squares_ptr)
    pointers = (y_ptr, out_sums_ptr)
    memory = (xs, ts, scales, mail, words, pairs, full, empty, turns)
    deal = (own, whole)
    sizes = (rows, n, groups)
    given = (inputs, pointers, z_ptr, memory, ready, summed, deal, piece, sizes, beside_n)
    gl.warp_specialize(
        [
            (
                _consume,
                (0, given, GATE_UP, TILES, BESIDE, SUMS, SCALED, GROUPS, COLUMNS, STAGES, PDL),
            ),
            (
                _consume,
                (1, given, GATE_UP, TILES, BESIDE, SUMS, SCALED, GROUPS, COLUMNS, STAGES, PDL),
            ),
            (
                _produce,
                (
                    sources,
                    memory,
                    ready,
                    summed,
                    own,
                    units,
                    groups,
                    piece,
                    GATE_UP,
                    TILES,
                    BESIDE,
                    COLUMNS,
                    STAGES,
                    AHEAD,
                    PDL,
                ),
            ),
        ],
        [4, 1],
        [232, 24],
    )


def launch_ring(
    x: Tensor,
    tiles: Tensor,
    tall: int,
    programs: int,
    sums: Tensor | None,
    squares: Tensor | None,
    y: Tensor,
    out_sums: Tensor | None = None,
    beside: Tensor | None = None,
    z: Tensor | None = None,
) -> None:
    """With `out_sums` the matrix is [gate | up], and y is silu(gate) up with its sums."""
    row_tiles, groups = tiles.shape[:2]
    columns = columns_for(x.shape[0])
    most_groups = max(32, power_of_two(groups))
    left = SHARED - 4 * columns * (tall * ROWS + most_groups)
    stages = min(MOST_STAGES, left // (tall * 2 * TILE + 2 * columns * GROUP))
    stages -= stages % CONSUMERS  # a stage has one consumer: the parity of `full` is unambiguous
    if stages < CONSUMERS:
        raise ValueError(
            f"int4_matmul: {groups} groups leave room for {stages} stages, {CONSUMERS} are needed;"
            " use kernel.int4_matmul=triton"
        )
    paired = out_sums is not None
    x_rows = by_words(x, columns)
    overlap = dependent_launch(x.device)
    spare = 0 if beside is None else -(-beside.shape[0] // BESIDE_ROWS)
    _int4_ring_gluon[(programs + spare,)](
        x_rows,
        *by_blocks(tiles, tall, 2 if paired else 1),
        x_rows if beside is None else by_words(beside, BESIDE_ROWS),
        tiles if sums is None else sums,
        tiles if squares is None else squares,
        y,
        y if z is None else z,
        y if out_sums is None else out_sums,
        x.shape[0],
        y.shape[1],
        0 if z is None else z.shape[1],
        -(-row_tiles // tall),
        groups,
        programs,
        GATE_UP=paired,
        TILES=tall,
        BESIDE=beside is not None,
        SUMS=sums is not None,
        SCALED=squares is not None,
        GROUPS=most_groups,
        COLUMNS=columns,
        STAGES=stages,
        AHEAD=min(UNDER_WAY // tall, stages),
        PDL=overlap,
        launch_pdl=overlap,
        num_warps=4,
    )
