"""Prompt lookup: copy what followed the text's last tokens where they stood before.

The longest match of at least `ngram_min` and at most `ngram_max` tokens wins, the most recent one
among equals. A match may overlap the suffix, so a period is found at its own distance.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from tr.drafts.base import MISSING, Feed, Stateless
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
        return int((self._find(feed) != MISSING).sum())

    def propose(self, state: None, feed: Feed, sampling: Sampling) -> tuple[Tensor, None]:
        return self._find(feed), None

    def _find(self, feed: Feed) -> Tensor:
        return find(feed.history, feed.pos, self.ngram_min, self.ngram_max, self.tokens)


def find(text: Tensor, last: Tensor, ngram_min: int, ngram_max: int, count: int) -> Tensor:
    """The `count` tokens after the best earlier match of the suffix of text[: last + 1].

    MISSING stands past the text's end, and everywhere if no match has `ngram_min` tokens.
    """
    length, end = match(text, last, ngram_max)
    return torch.where(length >= ngram_min, follow(text, last, end, count), MISSING)


def match(text: Tensor, last: Tensor, ngram_max: int) -> tuple[Tensor, Tensor]:
    """The longest earlier match of text's suffix, the latest among equals: length and end, [1].

    text int64 [n], last an index of it. Position e < last matches with length m, at most
    `ngram_max`, if text[e - m + 1 .. e] equals the suffix of text[: last + 1]. Negative tokens
    match nothing.
    """
    ends = torch.arange(len(text), device=text.device)
    # row `back` holds, for each position, the token that many places before it
    earlier = F.pad(text, (ngram_max - 1, 0), value=-1).unfold(0, len(text), 1)
    suffix = earlier.index_select(1, last[None])
    back = torch.arange(ngram_max - 1, -1, -1, dtype=torch.int16, device=text.device)[:, None]
    agree = (earlier == suffix) & (suffix >= 0)
    length = torch.where(agree, ngram_max, back).amin(0).long().masked_fill(ends >= last, 0)
    best = (length * len(text) + ends).argmax(0, keepdim=True)
    return length.index_select(0, best), best


def follow(text: Tensor, last: Tensor, end: Tensor, count: int) -> Tensor:
    """text[end + 1 ..], `count` tokens; MISSING past `last`."""
    at = end + 1 + torch.arange(count, device=text.device)
    return text.index_select(0, at.clamp(max=len(text) - 1)).masked_fill(at > last, MISSING)
