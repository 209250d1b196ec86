"""Strategies that run their programs in turn, whatever was accepted: any choice must be exact."""

from collections.abc import Sequence
from dataclasses import dataclass

from tr.drafts.base import Draft, Seen
from tr.drafts.chain import Chain
from tr.drafts.dflash2 import Dflash2


@dataclass(frozen=True, eq=False)
class InTurn(Chain):
    """Programs by name in turn: block, long and copy, or a row count of the long one."""

    order: tuple[str | int, ...] = ("block", "long", "copy", 11, "copy")

    def pick(self, seen: Sequence[Seen]) -> tuple[Draft, int]:
        name = self.order[len(seen) % len(self.order)]
        if isinstance(name, int):
            return self, name
        chosen = {"block": self.block, "long": self, "copy": self.copy}[name]
        return chosen, chosen.rows


def in_turn(block: Draft, *programs: str | int) -> InTurn:
    assert isinstance(block, Dflash2)
    return InTurn(block, 15 - block.tokens, 1, 4, 3, 2, order=programs or InTurn.order)
