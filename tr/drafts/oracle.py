"""A recorded continuation, each token corrupted with a given probability.

For timing a step at a stated acceptance, with random weights above all. What it measures is the
machine, not a draft: records that used it say `simulated_acceptance`.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from kernels.sample import mix
from tr.drafts.base import Feed, Full
from tr.model.sampling import Sampling


@dataclass(frozen=True)
class Oracle(Full):
    """`text` holds the whole recorded sequence, prompt included; past its end nothing is drafted.

    A token at position p is kept if a hash of (seed, p) falls below `rate`, else replaced. The text
    is read from the state, so that oracles of other texts share what was compiled for one.
    """

    text: Tensor = field(compare=False)
    tokens: int
    rate: float
    seed: int = 0
    name: str = "oracle"
    taps: tuple[int, ...] = ()
    sight = 0

    @property
    def rows(self) -> int:
        return self.tokens + 1

    @property
    def reach(self) -> int:
        return len(self.text)

    def init_state(self, capacity: int) -> Tensor:
        state = self.text.new_zeros(capacity + self.rows)
        known = self.text[: len(state)]
        state[: len(known)] = known
        return state

    def prime(
        self, state: Tensor, tokens: Tensor, hidden: Tensor, taps: Tensor, pos: int
    ) -> Tensor:
        return state

    def take_in(self, state: Tensor, feed: Feed) -> Tensor:
        return state

    def propose(self, state: Tensor, feed: Feed, sampling: Sampling) -> tuple[Tensor, Tensor]:
        where = feed.pos + 1 + torch.arange(self.tokens, device=state.device)
        truth = state.index_select(0, where)
        keep = mix(mix(where) ^ mix(torch.full_like(where, self.seed))) < self.rate * 2**32
        return torch.where(keep, truth, torch.where(truth == 0, 1, 0)), state
