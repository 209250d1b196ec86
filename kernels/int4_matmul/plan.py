"""How a matrix is dealt to programs: part of the numerics, so never a matter of the row count.

A unit of work is a block of output rows times one group of inputs. Program p of P owns the units
U p // P .. U (p + 1) // P - 1 in block-major order, so that all programs carry the same load
whatever the shape. The programs that share a block leave their sums in slots p + block, which are
distinct, and whichever arrives last adds them in the order of p.
"""

import functools
from dataclasses import dataclass


@dataclass(frozen=True)
class Plan:
    row_tiles: int  # 1, 2 or 4 tiles of 64 output rows per block
    programs: int
    warps: int = 4
    stages: int = 3  # copies of a unit that are under way or in use
    registers: int | None = None  # at most, per thread
    ahead: int = 4  # tiles that a program fetches into the L2 cache while the kernel before ends


@dataclass(frozen=True)
class Deal:
    """The choice for a shape before the number of processors is known."""

    row_tiles: int
    per_processor: int  # programs that run side by side on one processor
    stages: int  # where a processor has the shared memory for them


@dataclass(frozen=True)
class Card:
    processors: int
    shared: int  # bytes of shared memory of a processor


H200 = Card(132, 228 * 1024)

TALL = Deal(4, 2, 3)  # fewest instructions per weight
LOW = Deal(2, 3, 4)  # more programs, each sooner done: for matrices of less than 70 MB
FEW = Deal(1, 3, 4)  # for matrices of a few tiles

#: output rows, input width of the 27B's matrices -> the choice
TABLE = {
    (16384, 5120): LOW,  # Gated DeltaNet in
    (14336, 5120): LOW,  # attention in
    (34816, 5120): TALL,  # gate and up
    (5120, 6144): LOW,  # both out
    (5120, 17408): LOW,  # down
    (248320, 5120): TALL,  # the head
    (131072, 5120): TALL,  # a draft's slice of it
    (5120, 25600): LOW,  # the block draft's fc
    (10240, 5120): LOW,  # its keys and values of the context, all layers
    (6144, 5120): LOW,  # its q, k and v
    (5120, 4096): LOW,  # its attention out
    (1280, 5120): LOW,  # what its convolutions' taps come from
    (256, 5120): FEW,  # its selector
}
FILE = 65536  # registers of a processor
WARPS = 4
STAGE = 12 * 1024  # bytes, per two tiles: their words and parameters, and the group of x
LEAST = 3  # units per program: a shorter run is all start and end
STRIPE_TILES = 40  # in the Gluon stripes' ring, at most: a block must have more
MOST_BLOCKS = 32  # that a Gluon stripe may meet


@functools.cache
def plan(row_tiles: int, groups: int, card: Card, unit: int = 1, spare: int = 0) -> Plan:
    """The plan for `row_tiles` tiles of 64 rows and `groups` groups of 128 inputs.

    Blocks have a multiple of `unit` tiles; `spare` programs are left for other work in the same
    launch. Shapes outside the table take the tallest blocks that divide the rows. `stages` is the
    one choice that a card's shared memory makes, for it is not numerics.
    """
    deal = TABLE.get((64 * row_tiles, 128 * groups), TALL)
    tall = next((t for t in (4, 2, 1) if t <= deal.row_tiles and not row_tiles % t), 1)
    tall = max(tall, unit)
    if row_tiles % tall or tall % unit:
        raise ValueError(
            f"int4_matmul: {64 * row_tiles} output rows are not whole blocks of {64 * unit}"
        )
    units = row_tiles // tall * groups
    most = max(1, deal.per_processor * card.processors - spare)
    cap = FILE // (32 * WARPS * deal.per_processor) // 8 * 8
    programs = max(1, min(most, units // LEAST))
    fits = deal.per_processor * deal.stages * STAGE <= card.shared
    stages = deal.stages if fits else Plan.stages
    return Plan(tall, programs, WARPS, stages, cap if cap < 255 else None)


def ring(row_tiles: int, groups: int, card: Card, paired: bool = False) -> tuple[int, int] | None:
    """Tiles per block and programs of the Gluon kernel of whole blocks; None: stripes are better.

    `paired` blocks have as many tiles of the gate as of up. Whole blocks are better where all
    programs, one a processor, have as many and few processors none; and stripes have limits.
    """
    most = card.processors
    tall = -(-row_tiles // 4)
    for tiles, blocks in ((4, tall),) if paired else ((4, tall), (2, -(-row_tiles // 2))):
        programs = -(-blocks // -(-blocks // most))
        if not blocks % programs and 5 * programs >= 4 * most:
            return tiles, programs
    if 4 * groups <= STRIPE_TILES or tall // most + 3 > MOST_BLOCKS:
        return 4, min(most, tall)
    return None


def ring_beside(row_tiles: int, card: Card, spare: int) -> tuple[int, int]:
    """As `ring`, where `spare` processors have a dense matrix: it goes beside whole blocks only."""
    return 2, min(max(1, card.processors - spare), -(-row_tiles // 2))
