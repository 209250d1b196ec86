"""The kernel of the Triton int4 matmuls, and how it is launched, whatever the form.

A program multiplies its stripe of units in one loop (triton_multiply.py). After its stripe it
counts itself in at every block it touched. The program that arrives last adds the block's slots in
order, its own from memory like the others, finishes the block (triton_finish.py) and sets the
counter back to 0. How programs wait and who finishes a block may change; the order of the sums may
not, nor may anything else that makes a row's bits depend on the row count.

Where launches overlap (kernels/gpu.py) a program first asks for the head of its stripe to come to
the L2 cache: weights are constants. Only then it waits for the kernel before; x, slots, counters
and outputs are touched after that, so launches share slots and counters as if they came in turn.

Slots and counters are made once per size and kept: launches share them in stream order (kernels/
gpu.py, `counters`).
"""
# pyright: reportGeneralTypeIssues=false, reportCallIssue=false
# (Triton's ranges and launch options exist inside its compiler alone.)

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.define import MAX_ROWS
from kernels.gpu import (
    counters,
    dependent_launch,
    fetches_ahead,
    let_next_start,
    power_of_two,
    wait_for_inputs,
)
from kernels.int4_matmul.launch import GATE_UP, slots
from kernels.int4_matmul.layout import ROWS, TILE
from kernels.int4_matmul.plan import Plan
from kernels.int4_matmul.triton_finish import finish
from kernels.int4_matmul.triton_multiply import BESIDE_ROWS, multiply, multiply_beside
from kernels.int4_matmul.triton_parts import MOST_AHEAD, fetch_ahead

_TILE = tl.constexpr(TILE)
_ROWS = tl.constexpr(ROWS)
_COLUMNS = tl.constexpr(MAX_ROWS)
_FEW = tl.constexpr(MAX_ROWS // 2)  # columns: with no more rows a block is finished sooner
_GATE_UP = tl.constexpr(GATE_UP)


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
        multiply_beside(
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
            fetch_ahead(tiles_ptr, start, groups * _TILE, half, held, ROW_TILES, AHEAD)
        wait_for_inputs(PDL)
        done = multiply(
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
                    finish(
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
                    finish(
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


def launch_form(
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
