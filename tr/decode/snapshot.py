"""What a text needs, besides its cached rows, to go on from one place as if it never paused there.

A snapshot is a copy to the bit of all that `step` and `prefill` read: recurrent checkpoints, the
convolutions' tails, the records of pending rows, and the draft's own state. Caches hold a row for
each position, which nothing writes again: they are kept in pieces, once for all snapshots.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from kernels.kvarn import TILE
from tr.decode.porter import Porter, Tensors
from tr.decode.step import State
from tr.drafts.dflash2_net import Context
from tr.nn.attention import State as Cache
from tr.nn.gated_delta_net import State as Recurrent

BLOCK = 8192  # positions that a piece of rows has at most


@dataclass(frozen=True, eq=False)
class Snapshot:
    """A text at `pos`: the tokens before it were read. Where `prompt` is less, steps read some.

    `carried` gives what `parts` below names, on the host, once it is there.
    """

    pos: int
    prompt: int
    pending: int
    count: int
    anchor: int
    nbytes: int
    carried: Callable[[], Tensors]


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows start .. stop - 1 of every cache on the host, as they are stored; see `take_rows`."""

    start: int
    stop: int
    tensors: tuple[tuple[Tensor, ...], ...]  # by cache

    @cached_property
    def nbytes(self) -> int:
        return sum(x.nbytes for of_one in self.tensors for x in of_one)


def take(porter: Porter, state: State) -> Snapshot:
    """The state where it stands; waits for the device."""
    feed, target = state.feed, state.target
    scalars = (target.pos, state.prompt, target.pending, feed.count, feed.anchor)
    pos, prompt, pending, count, anchor = torch.stack(scalars).tolist()
    views = parts(state, pos, pending, count)
    size = sum(x.nbytes for x in views.values())
    return Snapshot(pos, prompt, pending, count, anchor, size, porter.small(views))


def restore(state: State, snapshot: Snapshot, ids: Tensor) -> None:
    """Put `state` where `snapshot` was taken, behind ids [pos]; its caches' rows are the caller's.

    Written in place: captured steps read the same storage.
    """
    s, feed, target = snapshot, state.feed, state.target
    held = s.carried()
    for name, x in parts(state, s.pos, s.pending, s.count).items():
        x.copy_(held[name], non_blocking=True)
    for x, value in (
        (target.pos, s.pos),
        (target.pending, s.pending),
        (state.prompt, s.prompt),
        (feed.pos, s.pos),
        (feed.count, s.count),
        (feed.anchor, s.anchor),
    ):
        x.fill_(value)
    feed.history[: s.pos] = ids
    feed.history[s.pos] = s.anchor


def reset(state: State) -> None:
    """Put `state` where an empty text begins."""
    for _, part in _leaves(state):
        if isinstance(part, Recurrent):
            part.h.zero_()
            part.tail.zero_()
    for x in (state.target.pos, state.target.pending, state.prompt, state.feed.pos):
        x.zero_()


def parts(state: State, pos: int, pending: int, count: int) -> Tensors:
    """Views of what a text at `pos` reads besides its ids and its caches' rows, by name.

    Of records the first `pending` rows, of the last step's outputs `count`; of a ring the rows that
    were written; of a cache what its format keeps beside its rows.
    """
    feed = state.feed
    found = {"feed.hidden": feed.hidden[:count], "feed.taps": feed.taps[:count]}
    for name, x in _leaves(state):
        if isinstance(x, Recurrent):
            found |= {f"{name}.h": x.h, f"{name}.tail": x.tail}
            records = {"x": x.past_x, "k": x.past_k, "u": x.past_u, "decay": x.past_decay}
            found |= {f"{name}.past_{key}": r[:pending] for key, r in records.items()}
        elif isinstance(x, Cache):
            found |= {f"{name}.{i}": r for i, r in enumerate(x.rows(pos, pos))}
        elif isinstance(x, Context):
            found |= {f"{name}.k": x.k[:, :, :pos], f"{name}.v": x.v[:, :, :pos]}
        elif isinstance(x, Tensor):
            found[name] = x
    return {name: x for name, x in found.items() if x.numel()}


def caches(state: State) -> list[Cache]:
    """What holds a row for each position: the target's caches, then the draft's."""
    return [x for _, x in _leaves(state) if isinstance(x, Cache)]


def take_rows(porter: Porter, state: State, start: int, stop: int) -> list[Rows]:
    """Rows start .. stop - 1, in pieces that end on multiples of BLOCK."""
    pieces = []
    for first in [start, *range(start - start % BLOCK + BLOCK, stop, BLOCK)]:
        last = min(first - first % BLOCK + BLOCK, stop)
        copies = (porter.large(cache.rows(first, last)) for cache in caches(state))
        pieces.append(Rows(first, last, tuple(copies)))
    return pieces


def rows_bytes(state: State, start: int, stop: int) -> int:
    """What `take_rows` would take."""
    return sum(x.nbytes for cache in caches(state) for x in cache.rows(start, stop))


def put_rows(state: State, kept: Iterable[Rows], start: int, stop: int) -> tuple[int, int]:
    """Write the pieces of `kept`, in order, that hold any of rows start .. stop - 1, whole.

    Returns the range of rows that was written, that one or more. A piece that begins within a
    tile has all of it, and follows the one before.
    """
    for rows in kept:
        if start < stop and start < rows.stop and rows.start < stop:
            for cache, tensors in zip(caches(state), rows.tensors, strict=True):
                cache.put(rows.start, tensors)
            start, stop = min(start, rows.start), max(stop, rows.stop + -rows.stop % TILE)
    return start, max(start, stop)


def _leaves(state: State) -> Iterator[tuple[str, Any]]:
    """A state's parts by name, but for what all texts share."""
    whole = {"layers": state.target.layers, "draft": state.draft}
    kinds = (Cache, Recurrent, Context)
    flat, _ = pytree.tree_flatten_with_path(whole, is_leaf=lambda x: isinstance(x, kinds))
    for path, x in flat:
        yield pytree.keystr(path), x
