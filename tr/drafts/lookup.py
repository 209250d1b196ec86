"""Prompt lookup: copy what followed the text's last tokens where they stood before.

The longest match of at least `ngram_min` and at most `ngram_max` tokens wins, the most recent one
among equals. A match may overlap the suffix, so a period is found at its own distance.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from tr.drafts.base import Feed, Stateless
from tr.model.sampling import Sampling


@dataclass(frozen=True)
class Lookup(Stateless):
    tokens: int
    ngram_min: int
    ngram_max: int
    name: str = "lookup"

    @property
    def rows(self) -> int:
        return self.tokens + 1

    def propose(self, state: None, feed: Feed, sampling: Sampling) -> tuple[Tensor, None]:
        text = feed.history[: int(feed.pos) + 1]
        return find(text, self.ngram_min, self.ngram_max)[: self.tokens], None


def find(text: Tensor, ngram_min: int, ngram_max: int) -> Tensor:
    """The tokens after the best earlier match of text's suffix; empty if there is none.

    text int64 [n]. Position e matches with length m if text[e - m + 1 .. e] equals the suffix.
    """
    last = len(text) - 1
    if last < ngram_min:
        return text[:0]
    ends = torch.arange(last, device=text.device)
    length = torch.zeros_like(ends)
    alive = torch.ones_like(ends, dtype=torch.bool)
    for back in range(min(ngram_max, last)):
        shifted = torch.full_like(ends, -1)
        shifted[back:] = text[: last - back]
        alive &= shifted == text[last - back]
        length += alive
    score = length * (last + 1) + ends
    best = score.argmax()
    if int(length[best]) < ngram_min:
        return text[:0]
    return text[int(best) + 1 :]
