"""No draft: one row a step, plain autoregressive decoding."""

from dataclasses import dataclass

from torch import Tensor

from tr.drafts.base import Feed, Stateless
from tr.model.sampling import Sampling


@dataclass(frozen=True)
class Raw(Stateless):
    name: str = "raw"
    rows: int = 1

    def propose(self, state: None, feed: Feed, sampling: Sampling) -> tuple[Tensor, None]:
        return feed.history[:0], None
