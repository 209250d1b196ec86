"""Whole steps from the text's own past while they keep matching, without a pass of the draft.

Once a long step of `dflash2_lookup` was accepted whole, the text is being copied: the next steps
propose what followed its last tokens earlier, until one of them is not accepted whole. The draft's
ring takes in every step's rows meanwhile, so that it goes on as if it had never paused.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from tr.drafts.base import Draft, Seen
from tr.drafts.dflash2_lookup import Dflash2Lookup, whole
from tr.drafts.joint import Copy


@dataclass(frozen=True, eq=False)
class Chain(Dflash2Lookup):
    after: int = 1  # long steps in a row that were accepted whole before one is copied
    name: str = "chain"

    @cached_property
    def copy(self) -> Copy:
        return Copy(self.block, self.rows, self.ngram_min, self.ngram_max)

    @property
    def programs(self) -> tuple[Draft, ...]:
        return *super().programs, self.copy

    def pick(self, seen: Sequence[Seen]) -> tuple[Draft, int]:
        if whole(seen, self.after, self.rows):
            return self.copy, self.rows
        return super().pick(seen)
