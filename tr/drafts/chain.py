"""Whole steps from the text's own past while they keep matching, without a pass of the draft.

Once a long step of `dflash2_lookup` was accepted whole, the text is being copied: the next steps
propose what followed its last tokens earlier, until one of them is not accepted whole. The draft's
ring takes in every step's rows meanwhile, so that it goes on as if it had never paused.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from tr.drafts import dflash2
from tr.drafts.base import MISSING, Draft, Feed, Seen
from tr.drafts.dflash2_lookup import Dflash2Lookup, whole
from tr.drafts.lookup import find
from tr.model.sampling import Sampling


@dataclass(frozen=True, eq=False)
class Copy(Dflash2Lookup):
    """The program of a copied step: lookup alone, over the block's state."""

    name: str = "copy"

    def found(self, feed: Feed) -> int:
        """At least 1: a step of one row does not ask, and its ring would miss what came before."""
        return max(1, int((self._find(feed) != MISSING).sum()))

    def propose(
        self, state: dflash2.State, feed: Feed, sampling: Sampling
    ) -> tuple[Tensor, dflash2.State]:
        return self._find(feed), self.block.take_in(state, feed)

    def _find(self, feed: Feed) -> Tensor:
        return find(feed.history, feed.pos, self.ngram_min, self.ngram_max, self.rows - 1)


@dataclass(frozen=True, eq=False)
class Chain(Dflash2Lookup):
    after: int = 1  # long steps in a row that were accepted whole before one is copied
    name: str = "chain"

    @cached_property
    def copy(self) -> Copy:
        given = self.block, self.tail, self.ngram_min, self.ngram_max, self.trust, self.saturated
        return Copy(*given)

    def pick(self, seen: Sequence[Seen]) -> tuple[Draft, int]:
        if whole(seen, self.after, self.rows):
            return self.copy, self.rows
        return super().pick(seen)
