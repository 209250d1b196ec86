"""Stored matrices into what a layer holds: dense numbers, or int4 tiles made of their own codes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kernels.int4_matmul import layout
from kernels.int4_matmul.layout import GROUP, LINES, ROWS, WORDS
from tr.checkpoint.imports.report import Error, Held
from tr.checkpoint.imports.stored import Opened, Stored
from tr.nn.formats.int4 import Int4
from tr.nn.formats.table4 import Table4

BLOCK = 2**23  # numbers in flight: 32 MiB in fp32, a few times over


@dataclass(frozen=True)
class Block:
    """Rows of one stored matrix as codes with int4 parameters."""

    codes: Tensor
    scale: Tensor
    minimum: Tensor


def rows_at_once(shape: Sequence[int]) -> int:
    """Rows of a block: whole tiles."""
    width = max(1, shape[1] if len(shape) > 1 else 1)
    return ROWS * max(1, BLOCK // (width * ROWS))


def spans(shape: Sequence[int]) -> Iterator[tuple[int, int]]:
    step = rows_at_once(shape)
    for start in range(0, shape[0], step):
        yield start, min(start + step, shape[0])


def fill(stored: Sequence[Stored], opened: Sequence[Opened], out: Tensor) -> tuple[Held, ...]:
    """`out` [n, ...], on any device, from what is stacked in it; what became of each."""
    report, at = [], 0
    for one, source in zip(stored, opened, strict=True):
        error = Error()
        source.check()
        for start, stop in spans(one.shape):
            right = source.weight(start, stop)
            if one.foreign and source.grid is None:
                one.finite(right)
            near = right.to(out.dtype)
            out[at + start : at + stop] = near
            if not _holds(out.dtype, right.dtype):
                error.add(near, right)
        at += one.shape[0]
        report.append(error.on(Held(one.name, label(one, source), "exact", one.nbytes), "rounded"))
    assert at == out.shape[0]
    return tuple(report)


def _holds(to: torch.dtype, source: torch.dtype) -> bool:
    """Whether every number of `source` is one of `to`."""
    return torch.promote_types(to, source) == to


def label(one: Stored, source: Opened) -> str:
    """The format in a report, with its bits and groups, or what the files restore themselves."""
    if grid := source.grid:
        groups = "reordered" if grid.index is not None else f"g{one.shape[1] // grid.groups}"
        return f"{one.format.name} {grid.bits} bits {groups}"
    dtype = one.files.entries[next(iter(one.parts.values()))].dtype
    return dtype if dtype in one.files.restores else one.format.name


def packs(stored: Sequence[Stored], opened: Sequence[Opened], rounding: bool) -> bool:
    """Whether all of a stack can be held by its own codes; `rounding`: of scales and minimums."""
    for one, source in zip(stored, opened, strict=True):
        if source.grid is None or not source.grid.fits(one.shape[1]):
            return False
        if not rounding and not source.grid.int4(one.shape[1])[2]:
            return False
    return True


def pack(
    stored: Sequence[Stored], opened: Sequence[Opened], device: torch.device | str
) -> tuple[Int4, tuple[Held, ...]]:
    """The stack by its own codes; see `packs`."""
    report: list[Held] = []
    splits = tuple(one.shape[0] for one in stored)
    shape = -(-sum(splits) // ROWS), stored[0].shape[1] // GROUP, LINES, WORDS
    tiles = torch.empty(shape, dtype=torch.int16, device=device)
    at = 0
    for block in _whole_tiles(_blocks(stored, opened, device, report)):
        packed = layout.pack(block.codes, block.scale, block.minimum)
        tiles[at : at + len(packed)] = packed
        at += len(packed)
    assert at == len(tiles)
    return Int4(tiles=tiles, splits=splits), tuple(report)


def _blocks(
    stored: Sequence[Stored],
    opened: Sequence[Opened],
    device: torch.device | str,
    report: list[Held],
) -> Iterator[Block]:
    for one, source in zip(stored, opened, strict=True):
        assert source.grid is not None and source.codes is not None
        k = one.shape[1]
        scale, minimum, exact = source.grid.int4(k)
        error = Error()
        source.check()
        for start, stop in spans(one.shape):
            codes = source.codes(start, stop)
            block = Block(codes, scale[start:stop], minimum[start:stop])
            if not exact:
                error.add(_restored(block), source.grid.weight(codes, start, wide=True))
            yield Block(*(t.to(device) for t in (block.codes, block.scale, block.minimum)))
        held = Held(one.name, label(one, source), "repacked", one.nbytes)
        report.append(error.on(held, "requantised"))


def recoded(report: Sequence[Held], weight: Tensor, made: Int4 | Table4) -> tuple[Held, ...]:
    """`report` of a dense stack that became `made`: errors measured where it came as codes."""
    if all(held.format == "plain" for held in report):
        return tuple(
            replace(h, kind="quantised", max_error=None, relative_error=None) for h in report
        )
    error = Error()
    for start, stop in spans(weight.shape):
        held = made.rows(start // ROWS, -(-stop // ROWS), torch.float32)
        error.add(held, weight[start:stop])
    return tuple(
        replace(
            h,
            kind="quantised" if h.format == "plain" else "requantised",
            max_error=error.largest,
            relative_error=error.relative,
        )
        for h in report
    )


def _restored(block: Block) -> Tensor:
    q = block.codes.float().unflatten(1, (block.scale.shape[1], -1))
    return (q * block.scale[..., None].float() + block.minimum[..., None].float()).flatten(1)


def _whole_tiles(blocks: Iterator[Block]) -> Iterator[Block]:
    """The same rows in blocks of whole tiles, the last one aside."""
    rest: Block | None = None
    for block in blocks:
        if rest is not None:
            block = Block(
                torch.cat([rest.codes, block.codes]),
                torch.cat([rest.scale, block.scale]),
                torch.cat([rest.minimum, block.minimum]),
            )
        whole = len(block.codes) // ROWS * ROWS
        if whole:
            yield Block(block.codes[:whole], block.scale[:whole], block.minimum[:whole])
        rest = None
        if whole < len(block.codes):
            rest = Block(block.codes[whole:], block.scale[whole:], block.minimum[whole:])
    if rest is not None:
        yield rest
