"""What every draft strategy is: a frozen object with pure functions over its own state.

A step of the decoding loop is propose -> verify -> accept -> commit. A draft sees the committed
text and what the target computed for it, never the target's state, and cannot change the output:
it only decides how many tokens one step may keep.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from jaxtyping import Float, Int64
from torch import Tensor

from tr.model.sampling import Sampling
from tr.tree import tree

MISSING = -1  # in a proposal: no draft for this place; its row is never kept
BROKEN = -2  # the same, because the draft's own logits there are no finite numbers


@tree
class Feed:
    """What a draft may read at the start of a step.

    The anchor is the last committed token; it stands at `pos` and the target has not processed it.
    `count` leading rows of the previous step were kept: rows at positions pos - count .. pos - 1.
    """

    anchor: Int64[Tensor, ""]
    pos: Int64[Tensor, ""]
    count: Int64[Tensor, ""]
    hidden: Float[Tensor, "rows d_model"]
    taps: Float[Tensor, "rows taps"]
    history: Int64[Tensor, " capacity"]  # every token so far; valid up to and including `pos`


@dataclass(frozen=True)
class Seen:
    """A finished step as the host read it: its rows, and how many of them were kept.

    `ran` is the name of what ran, `tokens` what it added to the text. The first one of a
    conversation is its prefill: one row, one token, and no name.
    """

    rows: int
    kept: int
    ran: str = ""
    tokens: tuple[int, ...] = ()


class Full:
    """What a strategy shares whose steps are all alike, with a draft for every row."""

    rows: int
    sight: int = 1 << 62  # the whole text

    @property
    def programs(self) -> tuple[Any, ...]:
        return (self,)

    def open(self, prompt: Sequence[int]) -> Any:
        return self

    def pick(self, seen: Sequence[Seen]) -> tuple[Any, int]:
        return self, self.rows

    def found(self, feed: Feed) -> int:
        return len(feed.hidden) - 1


class Stateless(Full):
    """What a strategy without weights shares: it reads the committed text, and keeps nothing."""

    taps: tuple[int, ...] = ()
    reach = 1 << 62  # no table that could end
    sight = 0

    def init_state(self, capacity: int) -> None:
        return None

    def prime(self, state: None, tokens: Tensor, hidden: Tensor, taps: Tensor, pos: int) -> None:
        return None

    def take_in(self, state: None, feed: Feed) -> None:
        return None


class Draft(Protocol):
    """One strategy. `rows` is the most rows a verify step of it has: the anchor and its drafts."""

    @property
    def name(self) -> str: ...

    @property
    def rows(self) -> int: ...

    @property
    def reach(self) -> int:
        """An anchor at `reach - n` may have at most n rows: the draft's tables end there."""
        ...

    @property
    def taps(self) -> tuple[int, ...]:
        """Target layers whose outputs the draft reads."""
        ...

    @property
    def sight(self) -> int:
        """How many tokens before an anchor a draft for it may depend on, by what `prime` took in.

        Those further back are never given to `prime`; with 0 none is.
        """
        ...

    @property
    def programs(self) -> "tuple[Draft, ...]":
        """All that `pick` may give back. What the first one takes in, all of them know."""
        ...

    def open(self, prompt: Sequence[int]) -> "Draft":
        """The strategy of a conversation that begins with `prompt`: all that its loop runs.

        A strategy that was opened opens itself for a longer prompt, whose state is the same.
        """
        ...

    def pick(self, seen: Sequence[Seen]) -> "tuple[Draft, int]":
        """What the next step runs: a strategy over this one's state and taps, and its rows; pure.

        `seen` holds the conversation's steps that the host has read, newest last; the step before
        the next one may be missing from it. It only grows. The rows are an upper bound: the loop
        cuts them at the window's end and at `reach`. Each pair of a strategy and a row count is
        compiled once, so that a strategy gives back the same few objects.
        """
        ...

    def found(self, feed: Feed) -> int:
        """How many of the next drafts are worth a row; read on the host, so only a CPU's loop asks.

        Fewer rows save time there and change no token.
        """
        ...

    def init_state(self, capacity: int) -> Any:
        """Empty state for texts of up to `capacity` tokens."""
        ...

    def prime(
        self,
        state: Any,
        tokens: Int64[Tensor, " tokens"],
        hidden: Float[Tensor, "tokens d_model"],
        taps: Float[Tensor, "tokens taps"],
        pos: int,
    ) -> Any:
        """Take in a prompt's tokens at positions pos, pos + 1, ...; `state` is donated."""
        ...

    def take_in(self, state: Any, feed: Feed) -> Any:
        """What `propose` does to `state` on account of the last step's rows; it is donated.

        Asked before a prompt goes on behind written text, and for up to MAX_ROWS rows of a prompt.
        """
        ...

    def propose(
        self, state: Any, feed: Feed, sampling: Sampling
    ) -> tuple[Int64[Tensor, " drafts"], Any]:
        """rows - 1 tokens for positions pos + 1, pos + 2, ...; `state` is donated.

        Nothing is read on the host: how many are used is the caller's choice. MISSING or BROKEN
        stands where there is no draft. A step of one row does not ask. A step that keeps nothing
        leaves `feed` as it was and the next one asks again, which must give the same.
        """
        ...
