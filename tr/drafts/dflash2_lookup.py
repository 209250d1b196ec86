"""A DFlash 2 block, and behind it what followed the text's last tokens where they stood before.

Where a text copies, the block is right to its end, and what it copies goes on. The tail is looked
up after the block's own tokens; a long match of the text alone replaces these as well. Sixteen rows
cost more than eight, so a long step is run only after steps that were accepted whole; the others
are the block's alone. Both are programs over the block's state.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tr.drafts import dflash2
from tr.drafts.base import Draft, Feed, Full, Seen
from tr.drafts.dflash2 import Dflash2
from tr.drafts.lookup import find, follow, match
from tr.model.sampling import Sampling


@dataclass(frozen=True, eq=False)
class Dflash2Lookup(Full):
    block: Dflash2
    tail: int  # tokens behind the block's
    ngram_min: int
    ngram_max: int
    trust: int  # a match this long replaces the block's tokens; above ngram_max: none does
    saturated: int  # steps in a row that were accepted whole before a long one
    name: str = "dflash2_lookup"

    @property
    def rows(self) -> int:
        return self.block.rows + self.tail

    @property
    def reach(self) -> int:
        return self.block.reach

    @property
    def taps(self) -> tuple[int, ...]:
        return self.block.taps

    @property
    def sight(self) -> int:
        return self.block.sight

    @property
    def programs(self) -> tuple[Draft, ...]:
        return self.block, self

    def pick(self, seen: Sequence[Seen]) -> tuple[Draft, int]:
        if whole(seen, self.saturated, self.block.rows):
            return self, self.rows
        return self.block, self.block.rows

    def init_state(self, capacity: int) -> dflash2.State:
        return self.block.init_state(capacity)

    def prime(
        self, state: dflash2.State, tokens: Tensor, hidden: Tensor, taps: Tensor, pos: int
    ) -> dflash2.State:
        return self.block.prime(state, tokens, hidden, taps, pos)

    def take_in(self, state: dflash2.State, feed: Feed) -> dflash2.State:
        return self.block.take_in(state, feed)

    def propose(
        self, state: dflash2.State, feed: Feed, sampling: Sampling
    ) -> tuple[Tensor, dflash2.State]:
        drafts, state = self.block.propose(state, feed, sampling)
        n, text, last = self.block.tokens, feed.history, feed.pos
        longer = torch.cat([text, text.new_zeros(n)])
        places = last + 1 + torch.arange(n, device=text.device)
        longer.index_copy_(0, places, drafts)
        tail = find(longer, last + n, self.ngram_min, self.ngram_max, self.tail)
        length, end = match(text, last, self.ngram_max)
        copied = follow(text, last, end, self.rows - 1)
        sure = (length >= self.trust) & (copied >= 0)
        return torch.where(sure, copied, torch.cat([drafts, tail])), state


def whole(seen: Sequence[Seen], steps: int, rows: int) -> bool:
    """Whether the last `steps` steps were accepted whole, with at least `rows` rows each."""
    last = seen[max(0, len(seen) - steps) :]
    return len(last) == steps and all(s.kept == s.rows >= rows for s in last)
