"""No draft: one row a step, plain autoregressive decoding."""

from dataclasses import dataclass

import torch
from torch import Tensor

from tr.drafts.base import Feed, Stateless
from tr.model.sampling import Sampling


@dataclass(frozen=True)
class Raw(Stateless):
    name: str = "raw"
    rows: int = 1

    def propose(self, state: None, feed: Feed, sampling: Sampling) -> tuple[Tensor, None]:
        return torch.empty(0, dtype=torch.int64, device=feed.anchor.device), None
