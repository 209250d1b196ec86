"""Programs over the states of several drafts: any of them may propose, or lookup may.

A state of several is a tuple of theirs. Those that are kept current take in the rows of each step,
whatever proposed its drafts, so that one can go on where another one stopped. One that is let go of
is not asked again.
"""

from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from tr.drafts.base import MISSING, Draft, Feed, Full
from tr.drafts.lookup import find
from tr.model.sampling import Sampling


class Keeper(Protocol):
    """A draft whose state can keep up with a text that others draft."""

    @property
    def reach(self) -> int: ...

    @property
    def taps(self) -> tuple[int, ...]: ...

    @property
    def sight(self) -> int: ...

    def init_state(self, capacity: int) -> Any: ...

    def prime(self, state: Any, tokens: Tensor, hidden: Tensor, taps: Tensor, pos: int) -> Any: ...

    def take_in(self, state: Any, feed: Feed) -> Any:
        """What `propose` does to `state` on account of the last step's rows; it is donated."""
        ...


class Within(Full):
    """What a program over the state of another one, `of`, shares."""

    of: Any

    @property
    def reach(self) -> int:
        return self.of.reach

    @property
    def taps(self) -> tuple[int, ...]:
        return self.of.taps

    @property
    def sight(self) -> int:
        return self.of.sight

    def init_state(self, capacity: int) -> Any:
        return self.of.init_state(capacity)

    def prime(self, state: Any, tokens: Tensor, hidden: Tensor, taps: Tensor, pos: int) -> Any:
        return self.of.prime(state, tokens, hidden, taps, pos)

    def take_in(self, state: Any, feed: Feed) -> Any:
        return self.of.take_in(state, feed)


@dataclass(frozen=True, eq=False)
class Copy(Within):
    """A copied step: lookup alone proposes, and the state keeps up."""

    of: Keeper
    rows: int
    ngram_min: int
    ngram_max: int
    name: str = "copy"

    def found(self, feed: Feed) -> int:
        """At least 1: a step of one row does not ask, and the state would miss what came before."""
        return max(1, int((self._find(feed) != MISSING).sum()))

    def propose(self, state: Any, feed: Feed, sampling: Sampling) -> tuple[Tensor, Any]:
        return self._find(feed), self.of.take_in(state, feed)

    def _find(self, feed: Feed) -> Tensor:
        return find(feed.history, feed.pos, self.ngram_min, self.ngram_max, self.rows - 1)


@dataclass(frozen=True, eq=False)
class Joint:
    """The states of `drafts`, of which those at `kept` stay current."""

    drafts: tuple[Keeper, ...]
    kept: tuple[int, ...]

    def __post_init__(self) -> None:
        taps = {draft.taps for draft in self.drafts if draft.taps}
        if len(taps) > 1:
            raise ValueError(
                f"draft: drafts side by side must read the same layers, got {sorted(taps)}; take"
                " one of them alone"
            )

    @property
    def reach(self) -> int:
        return min(draft.reach for draft in self.drafts)

    @property
    def taps(self) -> tuple[int, ...]:
        return max((draft.taps for draft in self.drafts), key=len)

    @property
    def sight(self) -> int:
        return max(draft.sight for draft in self.drafts)

    def init_state(self, capacity: int) -> tuple[Any, ...]:
        return tuple(draft.init_state(capacity) for draft in self.drafts)

    def prime(
        self, state: tuple[Any, ...], tokens: Tensor, hidden: Tensor, taps: Tensor, pos: int
    ) -> tuple[Any, ...]:
        each = zip(self.drafts, state, strict=True)
        return tuple(draft.prime(one, tokens, hidden, taps, pos) for draft, one in each)

    def take_in(
        self, state: tuple[Any, ...], feed: Feed, asked: int | None = None
    ) -> tuple[Any, ...]:
        """All but the draft at `asked`, which takes in what it needs as it proposes."""
        new = list(state)
        for i in self.kept:
            if i != asked:
                new[i] = self.drafts[i].take_in(state[i], feed)
        return tuple(new)


@dataclass(frozen=True, eq=False)
class Over(Within):
    """`runs` proposes, from the state of the draft at `at`."""

    of: Joint
    runs: Draft
    at: int
    name: str

    @property
    def rows(self) -> int:
        return self.runs.rows

    def found(self, feed: Feed) -> int:
        return self.runs.found(feed)

    def propose(
        self, state: tuple[Any, ...], feed: Feed, sampling: Sampling
    ) -> tuple[Tensor, tuple[Any, ...]]:
        new = list(self.of.take_in(state, feed, self.at))
        drafts, new[self.at] = self.runs.propose(state[self.at], feed, sampling)
        return drafts, tuple(new)
