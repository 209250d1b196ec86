"""Int4 matmul for Hopper where blocks do not come out even: stripes of them, one a processor.

The ring is that of gluon_ring.py, a unit four tiles of 64 rows by one group, or two where a block
ends in residual and norm: more programs then finish fewer rows each. Two consumers of four
warps take the units in turn, each all tiles of its unit, so that x is read once. At the end of a
block they add their sums, and the last leaves them in the program's slot.

What a program owns and how blocks are shared is as in triton_kernel.py, one program a processor.
The producer counts the program in at the blocks that end inside its stripe, the last block is
counted in at the end: so the program whose stripe ends with a block's last groups finishes it.
"""

from dataclasses import dataclass

from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from kernels.define import MAX_ROWS
from kernels.gluon_names import barrier, bulk_copy, viewed
from kernels.gpu import (
    counters,
    dependent_launch,
    let_next_start,
    power_of_two,
    wait_for_inputs,
)
from kernels.int4_matmul.gluon_finish import finish, given_to
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
    make_ready,
    multiplied,
    next_stage,
    next_unit,
    pass_turn,
    product,
    shares_of,
    wait_room,
    wait_turn,
)
from kernels.int4_matmul.launch import ADD_NORM, GATE_UP, PLAIN, card, slots
from kernels.int4_matmul.layout import GROUP, ROWS, TILE, WORDS
from kernels.int4_matmul.plan import MOST_BLOCKS, STRIPE_TILES

TALL = {PLAIN: 4, ADD_NORM: 2, GATE_UP: 4}  # tiles of a unit, by how a block ends

_ROWS = gl.constexpr(ROWS)
_WORDS = gl.constexpr(WORDS)
_GROUP = gl.constexpr(GROUP)
_SLOT_COLUMNS = gl.constexpr(MAX_ROWS)
_CONSUMERS = gl.constexpr(CONSUMERS)
_GATE_UP = gl.constexpr(GATE_UP)
_ADD_NORM = gl.constexpr(ADD_NORM)
_LAST = gl.constexpr(CONSUMERS - 1)
_TILE_BYTES = gl.constexpr(2 * TILE)
_MOST_BLOCKS = gl.constexpr(MOST_BLOCKS)


@gluon.jit
def _consume(
    part: gl.constexpr,
    sums_ptr,
    slot_ptr,  # the program's first
    memory,  # what stands in shared memory
    stripe,  # its first group, its units, blocks it touches, groups of a block, rows of x
    TILES: gl.constexpr,
    SUMS: gl.constexpr,
    COLUMNS: gl.constexpr,
    HELD: gl.constexpr,
    STAGES: gl.constexpr,
    PDL: gl.constexpr,
):
    """Multiply every other unit; the last consumer leaves a block's sums in the program's slot."""
    xs, ts, mail, words, pairs, ready, full, empty, turns, left, summed = memory
    first, units, touched, groups, rows = stripe
    BLOCK: gl.constexpr = TILES * _ROWS
    MMA: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [4, 1], [16, 8])
    FLAT: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    LINE: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    C: gl.constexpr = gl.SliceLayout(0, MMA)
    mbarrier.wait(ready, 0)
    wait_for_inputs(PDL)
    if SUMS:
        fetch_sums(part, ts, sums_ptr, first, units, groups, rows, summed)
        totals = viewed(ts, gl.float32, [ts.shape[0] * ts.shape[1], COLUMNS], LINE)
    A: gl.constexpr = gl.DotOperandLayout(0, MMA, 2)
    ones = gl.full([_ROWS, _WORDS], 1.0, gl.bfloat16, A)
    zero = gl.zeros([_ROWS, COLUMNS], gl.float32, MMA)
    at = part
    stage = part
    phase = 0
    for j in range(0, touched):
        start = gl.maximum(j * groups - first, 0)
        stop = gl.minimum((j + 1) * groups - first, units)
        mine = (stop - start - ((part - start) & _LAST) + _LAST) // _CONSUMERS
        a0 = zero
        a1 = zero
        a2 = zero
        a3 = zero
        for _ in range(0, mine):
            mbarrier.wait(full.index(stage), phase)
            x = all_inputs(xs.index(stage), COLUMNS, MMA, False)
            if SUMS:
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
            at = gl.where(at + _CONSUMERS >= HELD, at + _CONSUMERS - HELD, at + _CONSUMERS)
            stage, phase = next_stage(stage, phase, _CONSUMERS, STAGES)
        wait_turn(part, turns, j)
        a0 = added_up(part, mail.index(0), a0, _CONSUMERS, MMA)
        a1 = added_up(part, mail.index(1), a1, _CONSUMERS, MMA)
        if TILES == 4:
            a2 = added_up(part, mail.index(2), a2, _CONSUMERS, MMA)
            a3 = added_up(part, mail.index(3), a3, _CONSUMERS, MMA)
        pass_turn(part, turns)
        if part == _LAST:
            row = gl.arange(0, _ROWS, gl.SliceLayout(1, MMA))[:, None]
            col = gl.arange(0, COLUMNS, C)[None, :]
            live = (col < rows) & (row >= 0)
            place = slot_ptr + j * (BLOCK * _SLOT_COLUMNS) + col * BLOCK + row
            gl.store(place, a0, mask=live)
            gl.store(place + _ROWS, a1, mask=live)
            if TILES == 4:
                gl.store(place + 2 * _ROWS, a2, mask=live)
                gl.store(place + 3 * _ROWS, a3, mask=live)
            if j < touched - 1:
                mbarrier.arrive(left, count=1)


@gluon.jit
def _bring_weights(words_tiles, pairs_tiles, words, pairs, bar, stage, row_tile, group):
    bulk_copy(words_tiles, [0, row_tile, group, 0, 0], bar, words.index(stage))
    bulk_copy(pairs_tiles, [0, row_tile, group, _WORDS // 2, 0], bar, pairs.index(stage))


@gluon.jit
def _programs_of(block, deal):
    """The first program that has units of a block, and one past the last."""
    groups, units, programs = deal
    first = ((block * groups + 1) * programs - 1) // units
    return first, ((block + 1) * groups * programs - 1) // units + 1


@gluon.jit
def _arrived_last(left, counters_ptr, j, first_block, deal):
    """Count the program in at its j-th block once all consumers have left their sums there."""
    mbarrier.wait(left, j & 1)
    begin, end = _programs_of(first_block + j, deal)
    before = gl.atomic_add(counters_ptr + j, 1, sem="acq_rel")
    return (before == end - begin - 1).to(gl.int32)


@gluon.jit
def _produce(
    words_tiles,
    pairs_tiles,
    x_rows,
    counters_ptr,  # of the stripe's first block
    memory,
    last_here,
    block,  # the stripe's first
    first,  # its first group there
    units,
    touched,
    deal,  # groups of a block, units of all blocks, programs: constants
    STEP: gl.constexpr,
    BYTES: gl.constexpr,
    STAGES: gl.constexpr,
    AHEAD: gl.constexpr,
    PDL: gl.constexpr,
):
    """Bring the first units, of which weights are constants and do not wait for the kernel before;
    then others as stages become free, AHEAD at a time. Count in at blocks that ended.

    `last_here` [32] int32 tells of each whether this program was the last to arrive there.
    """
    xs, ts, mail, words, pairs, ready, full, empty, turns, left, summed = memory
    mbarrier.init(left, count=1)
    make_ready(ready, full, empty, turns, summed, STAGES)
    groups, all_units, programs = deal
    first_block = block
    group = first
    for unit in range(0, gl.minimum(units, AHEAD)):
        bar = full.index(unit)
        mbarrier.expect(bar, BYTES)
        _bring_weights(words_tiles, pairs_tiles, words, pairs, bar, unit, block * STEP, group)
        block, group = next_unit(block, group, groups)
    wait_for_inputs(PDL)
    for unit in range(0, gl.minimum(units, AHEAD)):
        bring_x(x_rows, xs, full.index(unit), unit, (first + unit) % groups)
    stage, phase = first_room(units, AHEAD, STAGES)
    L: gl.constexpr = gl.BlockedLayout([1], [32], [1], [0])
    i = gl.arange(0, _MOST_BLOCKS, L)
    was_last = gl.zeros([_MOST_BLOCKS], gl.int32, L)
    ended = 0  # blocks that this program is counted in at
    for unit in range(AHEAD, units):
        wait_room(full, empty, stage, phase, AHEAD, STAGES)
        bar = full.index(stage)
        mbarrier.expect(bar, BYTES)
        _bring_weights(words_tiles, pairs_tiles, words, pairs, bar, stage, block * STEP, group)
        bring_x(x_rows, xs, bar, stage, group)
        block, group = next_unit(block, group, groups)
        stage, phase = next_stage(stage, phase, 1, STAGES)
        if first + unit - STAGES + 1 == (ended + 1) * groups:  # all have read its last unit
            here = _arrived_last(left, counters_ptr, ended, first_block, deal)
            was_last = gl.where(i == ended, here, was_last)
            ended += 1
    if ended < touched - 1:  # no more than one: a block is longer than the ring
        here = _arrived_last(left, counters_ptr, ended, first_block, deal)
        was_last = gl.where(i == ended, here, was_last)
    last_here.store(was_last)


@gluon.jit(do_not_specialize=["rows"])
def _int4_stripes_gluon(
    x_rows,  # x as [k / 32, rows, 32], a group of COLUMNS rows at once
    words_tiles,  # the tiles as int32 [halves, row tiles, groups, 17, 64], sixteen lines at once
    pairs_tiles,  # the same, one line at once
    sums_ptr,  # [rows, groups] fp32: of x
    squares_ptr,  # [rows, groups] fp32: x counts times rsqrt of their sum
    slots_ptr,  # [programs + blocks, 16, 64 TILES] fp32
    counters_ptr,  # [blocks] int32, all 0 between launches
    y_ptr,  # [rows, n]; add_norm: the new residual
    out_sums_ptr,  # [rows, n / 128]
    residual_ptr,  # [rows, n]
    gain_ptr,  # [n]
    normed_ptr,  # [rows, n]
    out_squares_ptr,  # [rows, n / 128]
    rows,
    n,
    blocks: gl.constexpr,  # sizes that a start divides by are constants
    groups: gl.constexpr,
    programs: gl.constexpr,
    eps,
    FORM: gl.constexpr,
    TILES: gl.constexpr,  # of a block
    SUMS: gl.constexpr,
    SCALED: gl.constexpr,
    GROUPS: gl.constexpr,  # a power of two, at least `groups`
    COLUMNS: gl.constexpr,  # 8 or 16, at least `rows`
    HELD: gl.constexpr,  # groups whose sums a program keeps
    SHARE: gl.constexpr,  # a power of two, at least a half of HELD
    STAGES: gl.constexpr,
    AHEAD: gl.constexpr,  # units under way at most
    PDL: gl.constexpr,
):
    let_next_start(PDL)
    p = gl.program_id(0)
    units: gl.constexpr = blocks * groups
    begin = units * p // programs
    mine = units * (p + 1) // programs - begin
    block = begin // groups
    first = begin - block * groups
    touched = (begin + mine - 1) // groups + 1 - block
    words = gl.allocate_shared_memory(
        gl.int32, [STAGES] + words_tiles.block_type.shape, words_tiles.layout
    )
    pairs = gl.allocate_shared_memory(
        gl.int32, [STAGES] + pairs_tiles.block_type.shape, pairs_tiles.layout
    )
    xs = gl.allocate_shared_memory(gl.bfloat16, [STAGES] + x_rows.block_type.shape, x_rows.layout)
    ts = gl.allocate_shared_memory(
        gl.float32, [_CONSUMERS, SHARE, COLUMNS], gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    )
    last_here = gl.allocate_shared_memory(
        gl.int32, [_MOST_BLOCKS], gl.SwizzledSharedLayout(1, 1, 1, [0])
    )
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    mail = gl.allocate_shared_memory(
        gl.float32, [TILES, _ROWS, COLUMNS], gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    )
    turns = gl.allocate_shared_memory(gl.int64, [_CONSUMERS, 1], mbarrier.MBarrierLayout())
    left = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    summed = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    ready = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(ready, count=1)
    barrier()
    BLOCK: gl.constexpr = TILES * _ROWS
    STEP: gl.constexpr = TILES // 2 if FORM == _GATE_UP else TILES
    BYTES: gl.constexpr = TILES * _TILE_BYTES + COLUMNS * 2 * _GROUP
    slot_ptr = slots_ptr + (p + block) * (BLOCK * _SLOT_COLUMNS)
    memory = (xs, ts, mail, words, pairs, ready, full, empty, turns, left, summed)
    pointers = (y_ptr, out_sums_ptr, residual_ptr, gain_ptr, normed_ptr, out_squares_ptr)
    stripe = (first, mine, touched, groups, rows)
    deal = (groups, units, programs)
    gl.warp_specialize(
        [
            (
                _consume,
                (0, sums_ptr, slot_ptr, memory, stripe, TILES, SUMS, COLUMNS, HELD, STAGES, PDL),
            ),
            (
                _consume,
                (1, sums_ptr, slot_ptr, memory, stripe, TILES, SUMS, COLUMNS, HELD, STAGES, PDL),
            ),
            (
                _produce,
                (
                    words_tiles,
                    pairs_tiles,
                    x_rows,
                    counters_ptr + block,
                    memory,
                    last_here,
                    block,
                    first,
                    mine,
                    touched,
                    deal,
                    STEP,
                    BYTES,
                    STAGES,
                    AHEAD,
                    PDL,
                ),
            ),
        ],
        [4, 1],
        [232, 24],
    )
    # what a block's end needs besides sums is asked for before the counts, which take as long
    shares = rows
    if SCALED:
        shares = shares_of(squares_ptr, rows, groups, GROUPS, COLUMNS)
    barrier()  # all of this program's sums before its arrival at the last block
    G: gl.constexpr = (BLOCK // 2 if FORM == _GATE_UP else BLOCK) // _GROUP
    L: gl.constexpr = gl.BlockedLayout([1, 1, 4 * G], [1, G, 32 // G], [4, 1, 1], [2, 1, 0])
    A: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    i = gl.arange(0, _MOST_BLOCKS, A)
    known = last_here.load(A)
    for j in range(0, touched):
        b = block + touched - 1 - j
        one, end = _programs_of(b, deal)
        given = (rows, rows)
        if FORM == _ADD_NORM:
            given = given_to(b, pointers, rows, n, BLOCK, COLUMNS, L)
        if j > 0:
            last = gl.sum(gl.where(i == b - block, known, 0)) == 1
        else:
            last = gl.atomic_add(counters_ptr + b, 1, sem="acq_rel") == end - one - 1
        if last:
            finish(
                slots_ptr,
                one + b,
                end + b,
                b,
                shares,
                given,
                pointers,
                rows,
                n,
                eps,
                FORM,
                BLOCK,
                SCALED,
                COLUMNS,
                L,
            )
            gl.store(counters_ptr + b, 0)


@dataclass(frozen=True)
class AddNorm:
    """A block ends in the residual sum and the norm with gain, left unfinished."""

    residual: Tensor
    gain: Tensor
    eps: float
    normed: Tensor
    squares: Tensor


def fit(groups: int) -> bool:
    """Whether a block with residual and norm is longer than the ring: counts rest on that."""
    return groups > STRIPE_TILES // TALL[ADD_NORM]


def launch_stripes(
    x: Tensor,
    tiles: Tensor,
    sums: Tensor | None,
    squares: Tensor | None,
    y: Tensor,
    out_sums: Tensor | None = None,
    add_norm: AddNorm | None = None,
) -> None:
    """With `out_sums` alone the matrix is [gate | up], and y is silu(gate) up with its sums."""
    row_tiles, groups = tiles.shape[:2]
    form = ADD_NORM if add_norm else PLAIN if out_sums is None else GATE_UP
    tall = TALL[form]
    blocks = -(-row_tiles // tall)
    programs = min(card(x.device).processors, blocks * groups)
    held = min(groups, -(-blocks * groups // programs)) if sums is not None else 1
    columns = columns_for(x.shape[0])
    unit = tall * 2 * TILE + 2 * columns * GROUP
    left = SHARED - 4 * columns * tall * ROWS
    stages = min(MOST_STAGES, STRIPE_TILES // tall, left // unit)
    stages -= stages % CONSUMERS  # a stage has one consumer: the parity of `full` is unambiguous
    room = slots(x.device, power_of_two((programs + blocks) * tall * ROWS * MAX_ROWS))
    added = add_norm or AddNorm(y, y, 0.0, y, room)
    overlap = dependent_launch(x.device)
    _int4_stripes_gluon[(programs,)](
        by_words(x, columns),
        *by_blocks(tiles, tall, 2 if form == GATE_UP else 1),
        room if sums is None else sums,
        room if squares is None else squares,
        room,
        counters(x.device, power_of_two(blocks)),
        y,
        room if out_sums is None else out_sums,
        added.residual,
        added.gain,
        added.normed,
        added.squares,
        x.shape[0],
        y.shape[1],
        blocks,
        groups,
        programs,
        added.eps,
        FORM=form,
        TILES=tall,
        SUMS=sums is not None,
        SCALED=squares is not None,
        GROUPS=max(32, power_of_two(groups)),
        COLUMNS=columns,
        HELD=held,
        SHARE=max(32 // columns, power_of_two(-(-held // CONSUMERS))),
        STAGES=stages,
        AHEAD=min(UNDER_WAY // tall, stages),
        PDL=overlap,
        launch_pdl=overlap,
        num_warps=4,
    )
