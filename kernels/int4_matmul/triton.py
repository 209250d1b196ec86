"""Packed tensor-core int4 matmul: weights on the M side of the dot, 16 columns of x on the other.

A program owns 64, 128 or 256 output rows and a fixed range of groups. Per group it turns each
word into four tensor core operands whose elements are the exact integers 128 + code, runs four
dots of 32 inputs, and applies scale and minimum to the fp32 accumulator. Rows of x past `rows`
read as zero. Split sums go to slots, which a second kernel adds in order: tiles, splits and order
depend on n, k and the device alone, so a row's bits do not depend on the row count.

PACKED picks the unpacking: inline PTX to bfloat16, or plain arithmetic in fp32, which is what the
interpreter can run.
"""
# pyright: reportGeneralTypeIssues=false, reportCallIssue=false
# (Triton's ranges and launch options exist inside its compiler alone.)

import functools
from dataclasses import dataclass, replace

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.define import MAX_ROWS, variant
from kernels.gpu import INTERPRETED, SUPPORT
from kernels.gpu import check as check_tensors
from kernels.int4_matmul.layout import GROUP, LINES, ROWS, TILE, WORDS
from kernels.int4_matmul.reference import SHAPES, fake

FILLED = 0.8  # of the processors, in the last wave of programs
PER_PROCESSOR = 1.8  # programs, at least: loads of one cover the start of another

_TILE = tl.constexpr(TILE)
_ROWS = tl.constexpr(ROWS)
_WORDS = tl.constexpr(WORDS)
_GROUP = tl.constexpr(GROUP)
_COLUMNS = tl.constexpr(MAX_ROWS)  # always: the width of a tensor core operand
_UNPACK = tl.constexpr(
    """{
    .reg .b32 t;
    lop3.b32 $0, $4, 0x000f000f, 0x43004300, 0xea;
    shr.u32 t, $4, 4;
    lop3.b32 $1, t, 0x000f000f, 0x43004300, 0xea;
    shr.u32 t, $4, 8;
    lop3.b32 $2, t, 0x000f000f, 0x43004300, 0xea;
    shr.u32 t, $4, 12;
    lop3.b32 $3, t, 0x000f000f, 0x43004300, 0xea;
    }"""
)  # two words to four pairs of bfloat16: (word & 15) | 128.0, three times shifted


@dataclass(frozen=True)
class Plan:
    """How a matrix is dealt to programs. Part of the numerics: `splits` orders the sums."""

    row_tiles: int  # 1, 2 or 4 tiles of 64 output rows per program
    splits: int  # programs that share a block's groups
    warps: int = 4
    stages: int = 3


@functools.cache
def plan(row_tiles: int, groups: int, processors: int) -> Plan:
    """The tallest blocks, and the fewest splits that keep `processors` busy.

    Splits stop where a program would get fewer than four groups.
    """
    tall = next(t for t in (4, 2, 1) if row_tiles % t == 0)
    most = max(1, groups // 4)
    for splits in range(1, most + 1):
        programs = row_tiles // tall * splits
        waves = -(-programs // processors)
        enough = programs >= PER_PROCESSOR * processors
        if enough and programs >= FILLED * waves * processors:
            return Plan(tall, splits)
    return Plan(tall, most)


@triton.jit
def _unpack(words, PACKED: tl.constexpr):
    """int16 words [n, 32] -> four [n, 32] of 128 + code, one per nibble."""
    if PACKED:
        return tl.inline_asm_elementwise(
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
        return q0, q1, q2, q3


@triton.jit(do_not_specialize=["rows"])
def _int4_matmul_kernel(
    x_ptr,  # [rows, k]
    tiles_ptr,  # int16
    parameters_ptr,  # the same memory as bfloat16
    y_ptr,  # [SPLITS, rows, n]
    rows,
    n,
    groups,
    ROW_TILES: tl.constexpr,
    SPLITS: tl.constexpr,
    STAGES: tl.constexpr,
    PACKED: tl.constexpr,
):
    block = tl.program_id(0)
    split = tl.program_id(1)
    first = groups * split // SPLITS
    last = groups * (split + 1) // SPLITS
    row = tl.arange(0, ROW_TILES * _ROWS)
    word = tl.arange(0, _WORDS)
    col = tl.arange(0, _COLUMNS)
    live = (col < rows)[None, :]
    tile = ((block * ROW_TILES + row // _ROWS).to(tl.int64) * groups + first) * _TILE
    words = tiles_ptr + tile[:, None] + (row % _ROWS * _WORDS)[:, None] + word[None, :]
    parameters = parameters_ptr + tile + _ROWS * _WORDS + row % _ROWS
    x = x_ptr + col[None, :].to(tl.int64) * (groups * _GROUP) + first * _GROUP + word[:, None]
    acc = tl.zeros([ROW_TILES * _ROWS, _COLUMNS], tl.float32)
    for _ in tl.range(first, last, num_stages=STAGES):
        w = tl.load(words)
        scale = tl.load(parameters).to(tl.float32)
        minimum = tl.load(parameters + _ROWS).to(tl.float32)
        x0 = tl.load(x, mask=live, other=0.0)
        x1 = tl.load(x + _WORDS, mask=live, other=0.0)
        x2 = tl.load(x + 2 * _WORDS, mask=live, other=0.0)
        x3 = tl.load(x + 3 * _WORDS, mask=live, other=0.0)
        f0, f1, f2, f3 = x0.to(tl.float32), x1.to(tl.float32), x2.to(tl.float32), x3.to(tl.float32)
        total = tl.sum((f0 + f1) + (f2 + f3), axis=0)
        q0, q1, q2, q3 = _unpack(w, PACKED)
        if PACKED:
            d = tl.dot(q0, x0)
            d = tl.dot(q1, x1, d)
            d = tl.dot(q2, x2, d)
            d = tl.dot(q3, x3, d)
        else:
            d = tl.dot(q0, f0, input_precision="ieee")
            d = tl.dot(q1, f1, d, input_precision="ieee")
            d = tl.dot(q2, f2, d, input_precision="ieee")
            d = tl.dot(q3, f3, d, input_precision="ieee")
        offset = tl.fma(scale, -128.0, minimum)  # fp32: bfloat16 would cost a quarter of a step
        acc = tl.fma(offset[:, None], total[None, :], acc)
        acc = tl.fma(scale[:, None], d, acc)
        words += _TILE
        parameters += _TILE
        x += _GROUP
    out = block * (ROW_TILES * _ROWS) + row
    y = y_ptr + (split * rows + col).to(tl.int64)[None, :] * n + out[:, None]
    tl.store(y, acc.to(y_ptr.dtype.element_ty), mask=(out < n)[:, None] & live)


@triton.jit
def _sum_slots_kernel(slots_ptr, y_ptr, size, SPLITS: tl.constexpr, BLOCK: tl.constexpr):
    """y[i] = slots[0, i] + slots[1, i] + ..., in this order."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < size
    total = tl.load(slots_ptr + i, mask=mask, other=0.0)
    for split in tl.static_range(1, SPLITS):
        total += tl.load(slots_ptr + split * size + i, mask=mask, other=0.0)
    tl.store(y_ptr + i, total.to(y_ptr.dtype.element_ty), mask=mask)


def check(x: Tensor, tiles: Tensor, splits: list[int], packed: bool) -> None:
    rows, k = x.shape
    row_tiles, groups = tiles.shape[:2]
    check_tensors("int4_matmul", rows, x=x, tiles=tiles)
    if (
        k != groups * GROUP
        or row_tiles != -(-sum(splits) // ROWS)
        or tiles.shape[2:] != (LINES, WORDS)
    ):
        raise ValueError(
            f"int4_matmul: tiles of shape {tuple(tiles.shape)} do not fit x [{rows}, {k}] and"
            f" splits {splits}"
        )
    if (x.data_ptr() | tiles.data_ptr()) % 16:
        raise ValueError("int4_matmul: tiles and x must start on a multiple of 16 bytes")
    if packed and x.dtype != torch.bfloat16:
        raise ValueError(
            f"int4_matmul: triton multiplies bfloat16, got {x.dtype}; use kernel.int4_matmul=tile"
        )


def processors(device: torch.device) -> int:
    if device.type != "cuda":
        return 132
    return torch.cuda.get_device_properties(device).multi_processor_count


def slots(
    x: Tensor, tiles: Tensor, splits: list[int], chosen: Plan, packed: bool, dtype: torch.dtype
) -> Tensor:
    """The sums over each split's groups, [chosen.splits, rows, n] in `dtype`."""
    check(x, tiles, splits, packed)
    n, rows = sum(splits), x.shape[0]
    row_tiles, groups = tiles.shape[:2]
    y = torch.empty(chosen.splits, rows, n, dtype=dtype, device=x.device)
    if y.numel():
        _int4_matmul_kernel[(row_tiles // chosen.row_tiles, chosen.splits)](
            x,
            tiles,
            tiles.view(torch.bfloat16),
            y,
            rows,
            n,
            groups,
            ROW_TILES=chosen.row_tiles,
            SPLITS=chosen.splits,
            STAGES=chosen.stages,
            PACKED=packed,
            num_warps=chosen.warps,
        )
    return y


def launch(
    x: Tensor,
    tiles: Tensor,
    splits: list[int],
    chosen: Plan | None = None,
    packed: bool = not INTERPRETED,
) -> Tensor:
    """x [rows <= 16, k], tiles (layout.py) -> [rows, n] in x's dtype.

    Packed: x is bfloat16. Plain: fp32 inside, x of any dtype up to fp32.
    """
    if chosen is None:
        chosen = plan(*tiles.shape[:2], processors(x.device))
    stored = x.dtype if packed else torch.float32  # the interpreter truncates where it should round
    first = slots(x, tiles, splits, chosen, packed, stored if chosen.splits == 1 else torch.float32)
    if chosen.splits == 1:
        return first[0].to(x.dtype)
    y = torch.empty(first.shape[1:], dtype=stored, device=x.device)
    if y.numel():
        _sum_slots_kernel[(triton.cdiv(y.numel(), 1024),)](
            first, y, y.numel(), SPLITS=chosen.splits, BLOCK=1024, num_warps=4
        )
    return y.to(x.dtype)


@variant("int4_matmul", "triton", fake, support=replace(SUPPORT, multiples=SHAPES))
def int4_matmul(x: Tensor, tiles: Tensor, splits: list[int]) -> Tensor:
    """x [rows <= 16, k] bfloat16, tiles (layout.py) -> [rows, sum(splits)] in x's dtype."""
    return launch(x, tiles, splits)
