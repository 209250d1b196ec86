"""What packed Triton matmuls share: fetching ahead, dots, slots, shares of mean squares.

int4_matmul and table4_matmul are made of these, so a change here is a change of both: how numbers
come and go may differ, the order in which they are added may not. PACKED picks tensor cores and
inline PTX, or plain arithmetic in fp32, which is what the interpreter can run.
"""
# pyright: reportGeneralTypeIssues=false, reportAssignmentType=false
# (Triton's ranges and constants exist inside its compiler alone.)

import triton
import triton.language as tl

from kernels.define import MAX_ROWS
from kernels.int4_matmul.layout import TILE

MOST_AHEAD = 128  # tiles that a program fetches ahead: one for each thread

_TILE = tl.constexpr(TILE)
_COLUMNS = tl.constexpr(MAX_ROWS)  # always: the width of a tensor core operand
_MOST_AHEAD = tl.constexpr(MOST_AHEAD)

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
def side_by_side(a, b):
    """[n, k] twice -> [n, 2 k], which moves nothing between threads."""
    return tl.permute(tl.join(a, b), (0, 2, 1)).reshape(a.shape[0], 2 * a.shape[1])


@triton.jit
def dot(q, x, acc, PACKED: tl.constexpr):
    if PACKED:
        return tl.dot(q, x, acc)
    else:
        return tl.dot(q, x.to(tl.float32), acc, input_precision="ieee")


@triton.jit
def fetch_ahead(
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
def leave(slot_ptr, sums, rows, PACKED: tl.constexpr):
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
def added(
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
def shares_of(squares_ptr, col, live, groups, GROUPS: tl.constexpr):
    """Shares of the mean squares of the rows `col`, [columns, GROUPS]."""
    g = tl.arange(0, GROUPS)[None, :]
    mask = live[:, None] & (g < groups)
    return tl.load(squares_ptr + col[:, None] * groups + g, mask=mask, other=0.0)


@triton.jit
def unit_of(shares, live):
    """1 / rms of rows from their shares; [columns]."""
    return tl.rsqrt(tl.where(live, tl.sum(shares, axis=1), 1.0))
