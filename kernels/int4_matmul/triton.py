"""Packed tensor-core int4 matmul: weights on the M side of the dot, 16 columns of x on the other.

One launch a matrix. A program multiplies its stripe of units (plan.py) in one loop: per group of
128 inputs it turns each word into four tensor core operands whose elements are the exact integers
128 + code, runs two dots of 64 inputs, and applies scale and minimum to the fp32 accumulator. At
the end of a block it leaves its sums in its slot; after its stripe it counts itself in at every
block it touched. The program that arrives last adds the block's slots in order, its own from memory
like the others, finishes the block and sets the counter back to 0. Rows of x past `rows` read as
zero. Nothing depends on the row count, so neither do bits.

Where launches overlap (kernels/gpu.py) a program first asks for the head of its stripe to come to
the L2 cache: weights are constants. Only then it waits for the kernel before; x, slots, counters
and outputs are touched after that, so launches share slots and counters as if they came in turn.

Slots and counters are made once per size and kept: launches share them in stream order (kernels/
gpu.py, `counters`).

PACKED picks the unpacking: inline PTX to bfloat16, or plain arithmetic in fp32, which is what the
interpreter can run.
"""
# pyright: reportGeneralTypeIssues=false, reportCallIssue=false
# (Triton's ranges and launch options exist inside its compiler alone.)

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
from kernels.int4_matmul.layout import GROUP, ROWS, TILE, UNPACK, WORDS
from kernels.int4_matmul.plan import Plan, plan
from kernels.int4_matmul.reference import (
    SHAPES,
    fake,
    fake_add_norm,
    fake_beside,
    fake_gate_up,
)
from kernels.rounding import rounded

BESIDE_ROWS = 16  # rows of the dense matrix beside, per program
MOST_AHEAD = 128  # tiles that a program fetches ahead: one for each thread
PLAIN, ADD_NORM, GATE_UP = range(3)

_TILE = tl.constexpr(TILE)
_ROWS = tl.constexpr(ROWS)
_WORDS = tl.constexpr(WORDS)
_GROUP = tl.constexpr(GROUP)
_COLUMNS = tl.constexpr(MAX_ROWS)  # always: the width of a tensor core operand
_FEW = tl.constexpr(MAX_ROWS // 2)  # columns: with no more rows a block is finished sooner
_IN_FLIGHT = tl.constexpr(96)  # numbers of the slots that a thread loads at once
_BESIDE_ROWS = tl.constexpr(BESIDE_ROWS)
_BESIDE_INPUTS = tl.constexpr(256)
_MOST_AHEAD = tl.constexpr(MOST_AHEAD)
_PLAIN = tl.constexpr(PLAIN)
_ADD_NORM = tl.constexpr(ADD_NORM)
_GATE_UP = tl.constexpr(GATE_UP)
_UNPACK = tl.constexpr(UNPACK)

_FETCH = tl.constexpr(
    """{
    .reg .pred wanted;
    setp.ne.s32 wanted, $2, 0;
    @wanted cp.async.bulk.prefetch.L2.global [$1], 4352;
    mov.b32 $0, 0;
    }"""
)  # a tile, so that few requests are made: a warp makes them one by one

_STORE = tl.constexpr(
    """{
    .reg .pred wanted;
    setp.ne.s32 wanted, $3, 0;
    @wanted st.global.f32 [$1], $2;
    mov.b32 $0, 0;
    }"""
)  # tl.store would first move the sums between threads, by way of shared memory


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
    return _side_by_side(q0, q1), _side_by_side(q2, q3)


@triton.jit
def _side_by_side(a, b):
    """[n, k] twice -> [n, 2 k], which moves nothing between threads."""
    return tl.permute(tl.join(a, b), (0, 2, 1)).reshape(a.shape[0], 2 * a.shape[1])


@triton.jit
def _dot(q, x, acc, PACKED: tl.constexpr):
    if PACKED:
        return tl.dot(q, x, acc)
    else:
        return tl.dot(q, x.to(tl.float32), acc, input_precision="ieee")


@triton.jit
def _fetch_ahead(
    tiles_ptr, start, tile_size, half, units, ROW_TILES: tl.constexpr, AHEAD: tl.constexpr
):
    """Ask for the first tiles of a stripe to come to the L2 cache, at most AHEAD of them."""
    HALF: tl.constexpr = max(ROW_TILES // 2, 1)
    n = tl.arange(0, _MOST_AHEAD)  # tiles in the order of use
    t = n % ROW_TILES
    at = (t % HALF + t // HALF * half) * tile_size + n // ROW_TILES * _TILE
    wanted = ((n < AHEAD) & (n // ROW_TILES < units)).to(tl.int32)
    address = (tiles_ptr + start + at).to(tl.int64)
    tl.inline_asm_elementwise(
        _FETCH, "=r,l,r", [address, wanted], dtype=tl.int32, is_pure=False, pack=1
    )


@triton.jit
def _leave(slot_ptr, sums, rows, PACKED: tl.constexpr):
    """Store sums [n, 16] by columns, each thread what it holds: 8 lanes fill 32 bytes."""
    BLOCK: tl.constexpr = sums.shape[0]
    col = tl.arange(0, _COLUMNS)[None, :]
    row = tl.arange(0, BLOCK)[:, None]
    at = slot_ptr + col * BLOCK + row
    live = (col < rows) & (row >= 0)
    if PACKED:
        address, wanted = at.to(tl.int64), live.to(tl.int32)
        tl.inline_asm_elementwise(
            _STORE, "=r,l,f,r", [address, sums, wanted], dtype=tl.int32, is_pure=False, pack=1
        )
    else:
        tl.store(at, sums, mask=live)


@triton.jit
def _multiply(
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
        d = _dot(low, x0, d, PACKED)
        d = _dot(high, x1, d, PACKED)
        scale = (pair << 16).to(tl.float32, bitcast=True)
        minimum = (pair & -65536).to(tl.float32, bitcast=True)
        offset = tl.fma(scale, -128.0, minimum)  # fp32: bfloat16 would cost a quarter of a step
        acc = tl.fma(offset[:, None], total[None, :], acc)
        acc = tl.fma(scale[:, None], d, acc)
        group += 1
        ends = group == groups
        if ends | (unit == units - 1):
            _leave(slot_ptr + done * (BLOCK * _COLUMNS), acc, rows, PACKED)
            acc = tl.zeros([BLOCK, _COLUMNS], tl.float32)
            done += 1
        ahead = tl.where(ends, 1 + (STEP - 1) * groups, 1) * _TILE
        group = tl.where(ends, 0, group)
        words += ahead
        parameters += ahead // 2
    return done


@triton.jit
def _added(
    slots_ptr,
    begin,
    end,
    place,
    live,
    SLOT: tl.constexpr,
    APART: tl.constexpr,
    AT_ONCE: tl.constexpr,
):
    """slots[begin] + ... + slots[end - 1], in this order, at `place` and APART behind it.

    AT_ONCE loads of each are under way; without APART the second sum is 0.
    """
    total = tl.zeros(place.shape, tl.float32)
    other = tl.zeros(place.shape, tl.float32)
    for slot in tl.range(begin, end, AT_ONCE):
        at = slots_ptr + slot * SLOT + place
        left = tl.where(live, end - slot, 0)
        for i in tl.static_range(AT_ONCE):
            total += tl.load(at + i * SLOT, left > i, 0.0, cache_modifier=".cg")
            if APART:
                other += tl.load(at + i * SLOT + APART, left > i, 0.0, cache_modifier=".cg")
    return total, other


@triton.jit
def _shares(squares_ptr, col, live, groups, GROUPS: tl.constexpr):
    """Shares of the mean squares of the rows `col`, [columns, GROUPS]."""
    g = tl.arange(0, GROUPS)[None, :]
    mask = live[:, None] & (g < groups)
    return tl.load(squares_ptr + col[:, None] * groups + g, mask=mask, other=0.0)


@triton.jit
def _unit(shares, live):
    """1 / rms of rows from their shares; [columns]."""
    return tl.rsqrt(tl.where(live, tl.sum(shares, axis=1), 1.0))


@triton.jit
def _beside(
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
        shares = _shares(squares_ptr, col, live, groups, GROUPS)
        acc = acc * _unit(shares, live)[None, :]
    z = z_ptr + col[None, :] * n + row[:, None]
    tl.store(z, rounded(acc, dtype).to(dtype), mask=(row < n)[:, None] & live[None, :])


@triton.jit
def _finish(
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
        shares = _shares(squares_ptr, col, col < rows, groups, GROUPS)
    place = col[:, None] * BLOCK + row
    total, up = _added(slots_ptr, begin, end, place, live, SLOT, APART, AT_ONCE)
    if SCALED:
        r = _unit(shares, col < rows)[:, None]
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
            h = rounded(gate / (1.0 + tl.exp(-gate)), dtype) * rounded(up, dtype)
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


@triton.jit(do_not_specialize=["rows"], do_not_specialize_on_alignment=["sums_ptr", "squares_ptr"])
def _int4_matmul_kernel(
    x_ptr,  # [rows, k]
    tiles_ptr,  # int16
    parameters_ptr,  # the same memory as int32
    sums_ptr,  # [rows, groups] fp32: of x
    squares_ptr,  # [rows, groups] fp32: x counts times rsqrt of their sum
    slots_ptr,  # [programs + blocks, 16, 64 ROW_TILES] fp32
    counters_ptr,  # [blocks] int32, all 0 between launches
    beside_ptr,  # [beside_n, k]
    residual_ptr,  # [rows, n]
    gain_ptr,  # [n]
    y_ptr,  # [rows, n]
    z_ptr,  # [rows, beside_n]
    normed_ptr,  # [rows, n]
    out_sums_ptr,  # [rows, n / 128]
    out_squares_ptr,  # [rows, n / 128]
    rows,
    n,
    blocks,
    groups,
    beside_n,
    eps,
    FORM: tl.constexpr,
    BESIDE: tl.constexpr,  # programs for the dense matrix, in front
    SUMS: tl.constexpr,
    SCALED: tl.constexpr,
    GROUPS: tl.constexpr,
    ROW_TILES: tl.constexpr,
    STAGES: tl.constexpr,
    PACKED: tl.constexpr,
    AHEAD: tl.constexpr,
    WARPS: tl.constexpr,
    PDL: tl.constexpr,
):
    BLOCK: tl.constexpr = ROW_TILES * _ROWS
    let_next_start(PDL)
    if tl.program_id(0) < BESIDE:
        wait_for_inputs(PDL)
        _beside(
            x_ptr,
            beside_ptr,
            squares_ptr,
            z_ptr,
            tl.program_id(0),
            rows,
            beside_n,
            groups,
            SCALED,
            GROUPS,
            STAGES,
            PACKED,
        )
    else:
        p = tl.program_id(0) - BESIDE
        programs = tl.num_programs(0) - BESIDE
        units = blocks * groups
        from_unit = units * p // programs
        to_unit = units * (p + 1) // programs
        first_block = from_unit // groups
        group = from_unit - first_block * groups
        # half of a block comes from the gate's rows, half from up's
        STEP: tl.constexpr = ROW_TILES // 2 if FORM == _GATE_UP else ROW_TILES
        half = blocks * STEP if FORM == _GATE_UP else ROW_TILES // 2
        start = ((first_block * STEP).to(tl.int64) * groups + group) * _TILE
        if AHEAD > 0:
            held = tl.minimum(to_unit - from_unit, groups - group)
            _fetch_ahead(tiles_ptr, start, groups * _TILE, half, held, ROW_TILES, AHEAD)
        wait_for_inputs(PDL)
        done = _multiply(
            x_ptr,
            tiles_ptr,
            parameters_ptr,
            sums_ptr,
            slots_ptr + (p + first_block) * (BLOCK * _COLUMNS),
            start,
            half,
            rows,
            groups,
            group,
            to_unit - from_unit,
            ROW_TILES,
            STEP,
            SUMS,
            STAGES,
            PACKED,
        )
        OUT: tl.constexpr = BLOCK // 2 if FORM == _GATE_UP else BLOCK
        # a thread has 8 numbers of a row at least, so that sums of rows are taken in one order
        FEW: tl.constexpr = _FEW if _FEW * OUT >= 8 * 32 * WARPS else _COLUMNS
        tl.debug_barrier()  # all of this program's sums before its arrivals
        for block in tl.range(first_block, first_block + done, num_stages=1):
            first = ((block * groups + 1) * programs - 1) // units  # programs of this block
            last = ((block + 1) * groups * programs - 1) // units
            if tl.atomic_add(counters_ptr + block, 1, sem="acq_rel") == last - first:
                if rows <= FEW:
                    _finish(
                        slots_ptr,
                        first + block,
                        last + block + 1,
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
                        FORM,
                        SCALED,
                        GROUPS,
                        BLOCK,
                        WARPS,
                        FEW,
                    )
                else:
                    _finish(
                        slots_ptr,
                        first + block,
                        last + block + 1,
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
                        FORM,
                        SCALED,
                        GROUPS,
                        BLOCK,
                        WARPS,
                        _COLUMNS,
                    )
                tl.store(counters_ptr + block, 0)


def _launch(
    x: Tensor,
    tiles: Tensor,
    n: int,
    chosen: Plan,
    packed: bool,
    form: int,
    sums: Tensor | None,
    squares: Tensor | None,
    y: Tensor,
    z: Tensor | None = None,
    beside: Tensor | None = None,
    residual: Tensor | None = None,
    gain: Tensor | None = None,
    after: tuple[Tensor | None, Tensor | None, Tensor | None] = (None, None, None),
    eps: float = 0.0,
) -> None:
    """Write y, and z or what comes `after` it: the normed rows, their sums and squares."""
    row_tiles, groups = tiles.shape[:2]
    blocks = row_tiles // chosen.row_tiles
    size = (chosen.programs + blocks) * chosen.row_tiles * ROWS * MAX_ROWS
    room = slots(x.device, power_of_two(size))
    extra = 0 if beside is None else triton.cdiv(beside.shape[0], BESIDE_ROWS)
    if not y.numel():
        return

    def either(t: Tensor | None) -> Tensor:
        return x if t is None else t

    overlap = dependent_launch(x.device)
    _int4_matmul_kernel[(chosen.programs + extra,)](
        x,
        tiles,
        tiles.view(torch.int32),
        room if sums is None else sums,
        room if squares is None else squares,
        room,
        counters(x.device, power_of_two(blocks)),
        either(beside),
        either(residual),
        either(gain),
        y,
        either(z),
        either(after[0]),
        room if after[1] is None else after[1],
        room if after[2] is None else after[2],
        x.shape[0],
        n,
        blocks,
        groups,
        0 if beside is None else beside.shape[0],
        eps,
        FORM=form,
        BESIDE=extra,
        SUMS=sums is not None,
        SCALED=squares is not None,
        GROUPS=power_of_two(groups),
        ROW_TILES=chosen.row_tiles,
        STAGES=chosen.stages,
        PACKED=packed,
        AHEAD=min(chosen.ahead, MOST_AHEAD) if fetches_ahead(x.device) else 0,
        WARPS=chosen.warps,
        PDL=overlap,
        launch_pdl=overlap,
        num_warps=chosen.warps,
        maxnreg=chosen.registers,
    )


def launch(
    x: Tensor,
    tiles: Tensor,
    splits: list[int],
    sums: Tensor | None = None,
    squares: Tensor | None = None,
    chosen: Plan | None = None,
    packed: bool = not INTERPRETED,
) -> Tensor:
    """x [rows <= 16, k], tiles (layout.py) -> [rows, n] in x's dtype.

    Packed: x is bfloat16. Plain: fp32 inside, x of any dtype up to fp32.
    """
    n = sum(splits)
    check("int4_matmul", x, tiles, n, packed, sums, squares)
    chosen = chosen or plan(*tiles.shape[:2], card(x.device))
    y = x.new_empty(x.shape[0], n)
    _launch(x, tiles, n, chosen, packed, PLAIN, sums, squares, y)
    return y


def launch_beside(
    x: Tensor,
    tiles: Tensor,
    splits: list[int],
    weight: Tensor,
    sums: Tensor | None = None,
    squares: Tensor | None = None,
    chosen: Plan | None = None,
    packed: bool = not INTERPRETED,
) -> tuple[Tensor, Tensor]:
    n, rows = sum(splits), x.shape[0]
    check("int4_matmul_beside", x, tiles, n, packed, sums, squares, weight=weight)
    if weight.shape[1:] != x.shape[1:]:
        raise ValueError(
            f"int4_matmul_beside: weight of {tuple(weight.shape)} does not fit x {tuple(x.shape)}"
        )
    spare = triton.cdiv(weight.shape[0], BESIDE_ROWS)
    chosen = chosen or plan(*tiles.shape[:2], card(x.device), spare=spare)
    y, z = x.new_empty(rows, n), x.new_empty(rows, weight.shape[0])
    _launch(x, tiles, n, chosen, packed, PLAIN, sums, squares, y, z, weight)
    return y, z


def launch_add_norm(
    x: Tensor,
    tiles: Tensor,
    residual: Tensor,
    gain: Tensor,
    eps: float,
    sums: Tensor | None = None,
    chosen: Plan | None = None,
    packed: bool = not INTERPRETED,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    rows, n = residual.shape
    check("int4_add_norm", x, tiles, n, packed, sums, None, residual=residual, gain=gain)
    if n % GROUP or rows != x.shape[0] or gain.shape != (n,):
        raise ValueError(
            f"int4_add_norm: residual of {tuple(residual.shape)}, gain of {tuple(gain.shape)} and x"
            f" of {tuple(x.shape)} do not fit, or the output is no multiple of {GROUP}"
        )
    chosen = chosen or plan(*tiles.shape[:2], card(x.device), unit=2)
    s, normed = torch.empty_like(residual), torch.empty_like(residual)
    shares = [x.new_empty(rows, n // GROUP, dtype=torch.float32) for _ in range(2)]
    _launch(
        x,
        tiles,
        n,
        chosen,
        packed,
        ADD_NORM,
        sums,
        None,
        s,
        residual=residual,
        gain=gain,
        after=(normed, *shares),
        eps=eps,
    )
    return s, normed, *shares


def launch_gate_up(
    x: Tensor,
    tiles: Tensor,
    sums: Tensor | None = None,
    squares: Tensor | None = None,
    chosen: Plan | None = None,
    packed: bool = not INTERPRETED,
) -> tuple[Tensor, Tensor]:
    rows, width = x.shape[0], tiles.shape[0] * ROWS // 2
    check("int4_gate_up", x, tiles, 2 * width, packed, sums, squares)
    if width % GROUP:
        raise ValueError(f"int4_gate_up: {width} outputs are no multiple of {GROUP}")
    chosen = chosen or plan(*tiles.shape[:2], card(x.device), unit=4)
    y = x.new_empty(rows, width)
    out_sums = x.new_empty(rows, width // GROUP, dtype=torch.float32)
    after = (None, out_sums, None)
    _launch(x, tiles, width, chosen, packed, GATE_UP, sums, squares, y, after=after)
    return y, out_sums


WIDTHS = replace(SUPPORT, multiples=SHAPES)


@variant("int4_matmul", "triton", fake, support=WIDTHS)
def int4_matmul(
    x: Tensor,
    tiles: Tensor,
    splits: list[int],
    sums: Tensor | None = None,
    squares: Tensor | None = None,
) -> Tensor:
    """As the reference, for 1 to 16 rows of bfloat16."""
    return launch(x, tiles, splits, sums, squares)


@variant("int4_matmul_beside", "triton", fake_beside, support=WIDTHS)
def int4_matmul_beside(
    x: Tensor,
    tiles: Tensor,
    splits: list[int],
    weight: Tensor,
    weight_splits: list[int],
    sums: Tensor | None = None,
    squares: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """As the reference, in one launch, for 1 to 16 rows of bfloat16."""
    return launch_beside(x, tiles, splits, weight, sums, squares)


@variant("int4_add_norm", "triton", fake_add_norm, support=WIDTHS)
def int4_add_norm(
    x: Tensor,
    tiles: Tensor,
    residual: Tensor,
    gain: Tensor,
    eps: float,
    sums: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """normed = s (1 + gain), rounded once; `squares` hold the shares of mean(s^2) + eps."""
    return launch_add_norm(x, tiles, residual, gain, eps, sums)


@variant("int4_gate_up", "triton", fake_gate_up, support=WIDTHS)
def int4_gate_up(
    x: Tensor, tiles: Tensor, sums: Tensor | None = None, squares: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """As the reference, for 1 to 16 rows of bfloat16."""
    return launch_gate_up(x, tiles, sums, squares)
