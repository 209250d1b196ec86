"""Conversations on the host, and which of their parts go when they take too much room.

Snapshots are thinned out first, the further from a text's end the sparser: prompts part from a text
near its end mostly, and there the way back should be short. Then whole conversations go, those
first that nobody came back to, the least recently used among equals. Parts that two texts share
count once.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from kernels.kvarn import TILE
from tr.decode.snapshot import Rows, Snapshot
from tr.drafts.base import Draft

FEW = 8  # snapshots that a conversation keeps while others may go instead


@dataclass(eq=False)
class Conversation:
    """A text: `ids` int64, its snapshots by position, and the rows that the host holds.

    `opening` is the prompt by which its strategy was chosen. Of each of `rows` those before its
    bound are this text's. Of the rows that stood on the device
    when it left there, those of `lost` were overwritten since.
    """

    ids: Tensor
    draft: Draft
    opening: Tensor
    snapshots: dict[int, Snapshot] = field(default_factory=dict)
    rows: list[tuple[Rows, int]] = field(default_factory=list)
    lost: tuple[int, int] = (0, 0)
    turns: int = 0
    used: int = 0

    @property
    def end(self) -> int:
        """The last place that has a snapshot."""
        return max(self.snapshots, default=0)

    @property
    def saved(self) -> int:
        """How many rows the host holds."""
        return max((bound for _, bound in self.rows), default=0)

    def lose(self, start: int, stop: int) -> None:
        """Rows start .. stop - 1 of the device and their tiles' others are another text's now."""
        low, high = self.lost
        start, stop = start - start % TILE, stop + -stop % TILE
        self.lost = (min(start, low), max(stop, high)) if low < high else (start, stop)

    def until(self, pos: int) -> "Conversation":
        """A text of its own that begins with the first `pos` tokens of this one: a return to it."""
        return Conversation(
            self.ids[:pos],
            self.draft,
            self.opening,
            {at: s for at, s in self.snapshots.items() if at <= pos},
            [(rows, min(bound, pos)) for rows, bound in self.rows if rows.start < pos],
            self.lost,
            self.turns,
        )

    def place(self, ids: Tensor) -> int:
        """The last snapshot from which `ids` can go on; 0: none.

        Where steps read the last tokens, at least one more has to follow: its logits would be a
        step's.
        """
        n = min(len(ids), len(self.ids))
        differ = (ids[:n] != self.ids[:n]).nonzero()
        same = int(differ[0]) if len(differ) else n
        return max((at for at, s in self.snapshots.items() if fits(s, same, len(ids))), default=0)


def fits(snapshot: Snapshot, same: int, tokens: int) -> bool:
    pos = snapshot.pos
    return pos <= same and (pos < tokens or snapshot.prompt == pos)


class Held:
    """The conversations within `budget` bytes of the host."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.all: list[Conversation] = []
        self._clock = 0

    @property
    def nbytes(self) -> int:
        parts = {id(part): part.nbytes for c in self.all for part in _parts(c)}
        return sum(parts.values())

    def use(self, conversation: Conversation) -> None:
        """Note a turn of it; a new one joins the others, of which those without a snapshot go."""
        self.all = [c for c in self.all if c.snapshots]
        self._clock += 1
        conversation.used = self._clock
        conversation.turns += 1
        if conversation not in self.all:
            self.all.append(conversation)

    def longest(self, ids: Tensor) -> tuple[Conversation | None, int]:
        """Which one holds the longest beginning of `ids`, the latest among equals; and how long."""
        best: tuple[Conversation | None, int] = (None, 0)
        for one in sorted(self.all, key=lambda c: -c.used):
            if one.end > best[1] and (place := one.place(ids)) > best[1]:
                best = one, place
        return best

    def shrink(self, kept: Collection[Conversation], room: int = 0) -> None:
        """Let go of parts until the rest and `room` bytes fit; of `kept`, of snapshots alone."""
        while self.nbytes + room > self.budget and self._less(kept):
            pass

    def _less(self, kept: Collection[Conversation]) -> bool:
        """Let go of one part; False where there is none that may go."""
        most = max(self.all, key=lambda c: len(c.snapshots))
        if len(most.snapshots) > FEW:
            return _thin(most)
        others = [c for c in self.all if c not in kept]
        if not others:
            return len(most.snapshots) > 1 and _thin(most)
        oldest = min(others, key=lambda c: (c.turns > 1, c.used))
        if len(oldest.snapshots) > 1:
            return _thin(oldest)
        self.all.remove(oldest)
        return True


def _thin(conversation: Conversation) -> bool:
    """Drop the snapshot without which the gap is least, of the way from there to the end."""
    places = sorted(conversation.snapshots)
    gaps = zip([0, *places], places[1:], places, strict=False)
    end = places[-1]
    _, place = min(((after - before) / (end - at), at) for before, after, at in gaps)
    del conversation.snapshots[place]
    return True


def _parts(conversation: Conversation) -> Iterator[Snapshot | Rows]:
    yield from conversation.snapshots.values()
    for rows, _ in conversation.rows:
        yield rows


def ids_of(tokens: Sequence[int]) -> Tensor:
    """int64 on the host; of 100,000 numbers in 3 ms, where `torch.tensor` takes 10."""
    return torch.from_numpy(np.array(tokens, dtype=np.int64))
