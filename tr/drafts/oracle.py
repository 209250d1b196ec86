"""A recorded continuation, each token corrupted with a given probability.

For timing a step at a stated acceptance, with random weights above all. What it measures is the
machine, not a draft: records that used it say `simulated_acceptance`.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.sample import mix
from tr.drafts.base import Feed, Stateless
from tr.model.sampling import Sampling


@dataclass(frozen=True, eq=False)
class Oracle(Stateless):
    """`text` holds the whole recorded sequence, prompt included; past its end nothing is drafted.

    A token at position p is kept if a hash of (seed, p) falls below `rate`, else replaced.
    """

    text: Tensor
    tokens: int
    rate: float
    seed: int = 0
    name: str = "oracle"

    @property
    def rows(self) -> int:
        return self.tokens + 1

    def propose(self, state: None, feed: Feed, sampling: Sampling) -> tuple[Tensor, None]:
        first = int(feed.pos) + 1
        truth = self.text[first : first + self.tokens]
        where = torch.arange(first, first + len(truth), device=truth.device)
        keep = mix(mix(where) ^ mix(where.new_tensor(self.seed))) < self.rate * 2**32
        other = torch.where(truth == 0, torch.ones_like(truth), torch.zeros_like(truth))
        return torch.where(keep, truth, other), None
