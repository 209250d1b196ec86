"""No draft: one row a step, plain autoregressive decoding."""

from dataclasses import dataclass

import torch
from torch import Tensor

from tr.drafts.base import UNLIMITED, Feed
from tr.model.sampling import Sampling


@dataclass(frozen=True)
class Raw:
    name: str = "raw"
    rows: int = 1
    taps: tuple[int, ...] = ()
    reach: int = UNLIMITED

    def init_state(self, capacity: int) -> None:
        return None

    def prime(self, state: None, tokens: Tensor, hidden: Tensor, taps: Tensor, pos: int) -> None:
        return None

    def propose(self, state: None, feed: Feed, sampling: Sampling) -> tuple[Tensor, None]:
        return torch.empty(0, dtype=torch.int64, device=feed.anchor.device), None
