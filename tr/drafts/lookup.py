"""Prompt lookup: copy what followed the text's last tokens where they stood before.

The longest match of at least `ngram_min` and at most `ngram_max` tokens wins, the most recent one
among equals. A match may overlap the suffix, so a period is found at its own distance. Where a
step has more rows than were found, token 0 is guessed.
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

    def found(self, feed: Feed) -> int:
        return int((self._find(feed) >= 0).sum())

    def propose(self, state: None, feed: Feed, sampling: Sampling) -> tuple[Tensor, None]:
        return self._find(feed).clamp(min=0), None

    def _find(self, feed: Feed) -> Tensor:
        return find(feed.history, feed.pos, self.ngram_min, self.ngram_max, self.tokens)


def find(text: Tensor, last: Tensor, ngram_min: int, ngram_max: int, count: int) -> Tensor:
    """The `count` tokens after the best earlier match of the suffix of text[: last + 1].

    text int64 [n], last an index of it. Position e matches with length m if text[e - m + 1 .. e]
    equals the suffix. -1 stands past the text's end, and everywhere if there is no match.
    """
    ends = torch.arange(len(text), device=text.device)
    alive = ends < last
    length = torch.zeros_like(ends)
    for back in range(min(ngram_max, len(text))):
        shifted = torch.full_like(ends, -1)
        shifted[back:] = text[: len(text) - back]
        alive = alive & (shifted == text.index_select(0, (last - back).clamp(min=0)[None]))
        length = length + alive
    best = (length * len(text) + ends).argmax(0, keepdim=True)
    at = best + 1 + torch.arange(count, device=text.device)
    known = (at <= last) & (length.index_select(0, best) >= ngram_min)
    return torch.where(known, text.index_select(0, at.clamp(max=len(text) - 1)), -1)
