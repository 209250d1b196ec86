"""A draft that is right exactly where its plan says, over the state of a real one."""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import torch
from torch import Tensor

from tr.drafts.base import Draft, Feed, Full
from tr.drafts.raw import Raw
from tr.model.sampling import Sampling

Plan = Callable[[int], tuple[int, int]]  # anchor's position -> (tokens proposed, of them right)


def by_position(seed: int, most: int = 7) -> Plan:
    """Random counts that depend on the position alone, so that any way there gives the same."""

    def plan(pos: int) -> tuple[int, int]:
        rng = Random(f"{seed}/{pos}")
        proposed = rng.randint(0, most)
        return proposed, rng.randint(0, proposed)

    return plan


@dataclass(eq=False)
class Scripted(Full):
    """`truth` holds the whole text that raw decoding gives, prompt included.

    After the right tokens comes one wrong token, then right ones again, which must not count; past
    the proposed ones all are wrong.
    """

    truth: Tensor
    plan: Plan
    inner: Draft = field(default_factory=Raw)
    rows: int = 8
    name: str = "scripted"

    @property
    def reach(self) -> int:
        return self.inner.reach

    @property
    def taps(self) -> tuple[int, ...]:
        return self.inner.taps

    @property
    def sight(self) -> int:
        return self.inner.sight

    def init_state(self, capacity: int) -> Any:
        return self.inner.init_state(capacity)

    def prime(self, state: Any, tokens: Tensor, hidden: Tensor, taps: Tensor, pos: int) -> Any:
        return self.inner.prime(state, tokens, hidden, taps, pos)

    def take_in(self, state: Any, feed: Feed) -> Any:
        return self.inner.take_in(state, feed)

    def propose(self, state: Any, feed: Feed, sampling: Sampling) -> tuple[Tensor, Any]:
        _, state = self.inner.propose(state, feed, sampling)
        proposed, right = self.plan(int(feed.pos))
        first = int(feed.pos) + 1
        drafts = self.truth[first : first + self.rows - 1].clone()
        wrong = torch.where(drafts == 0, 1, 0)
        drafts[right : right + 1] = wrong[right : right + 1]
        drafts[proposed:] = wrong[proposed:]
        return torch.cat([drafts, drafts.new_zeros(self.rows - 1 - len(drafts))]), state
