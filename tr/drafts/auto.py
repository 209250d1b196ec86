"""A strategy by content: one for prompts in Chinese, Japanese or Korean, another one for the rest.

The prompt decides once, when its conversation is opened; from then on the strategy chosen is all
that runs. It may be one that goes on choosing, step by step (`adaptive`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from tr.drafts.base import Draft, Feed, Seen
from tr.model.sampling import Sampling

CJK = (  # first and last code points
    (0x1100, 0x11FF),  # Hangul letters
    (0x2E80, 0x9FFF),  # radicals, punctuation, kana, ideographs
    (0xA960, 0xA97F),
    (0xAC00, 0xD7FF),  # Hangul syllables
    (0xF900, 0xFAFF),
    (0xFE30, 0xFE4F),
    (0xFF00, 0xFFEF),  # full width forms
    (0x20000, 0x3FFFF),
)


def cjk_share(text: str) -> float:
    """The share of `text`'s characters, white space aside, that are Chinese, Japanese or Korean."""
    characters = [ord(c) for c in text if not c.isspace()]
    found = sum(any(low <= c <= high for low, high in CJK) for c in characters)
    return found / len(characters) if characters else 0.0


@dataclass(frozen=True, eq=False)
class Auto:
    """`cjk` where at least `share` of the prompt's characters are; `text` decodes a prompt.

    A conversation is opened with one of both; until then this one stands for `other`.
    """

    cjk: Draft
    other: Draft
    share: float
    text: Callable[[Sequence[int]], str]
    name: str = "auto"

    def open(self, prompt: Sequence[int]) -> Draft:
        chosen = self.cjk if cjk_share(self.text(prompt)) >= self.share else self.other
        return chosen.open(prompt)

    @property
    def rows(self) -> int:
        return self.other.rows

    @property
    def reach(self) -> int:
        return self.other.reach

    @property
    def taps(self) -> tuple[int, ...]:
        return self.other.taps

    @property
    def sight(self) -> int:
        return self.other.sight

    @property
    def programs(self) -> tuple[Draft, ...]:
        return self.other.programs

    def pick(self, seen: Sequence[Seen]) -> tuple[Draft, int]:
        return self.other.pick(seen)

    def found(self, feed: Feed) -> int:
        return self.other.found(feed)

    def init_state(self, capacity: int) -> Any:
        return self.other.init_state(capacity)

    def prime(self, state: Any, tokens: Tensor, hidden: Tensor, taps: Tensor, pos: int) -> Any:
        return self.other.prime(state, tokens, hidden, taps, pos)

    def take_in(self, state: Any, feed: Feed) -> Any:
        return self.other.take_in(state, feed)

    def propose(self, state: Any, feed: Feed, sampling: Sampling) -> tuple[Tensor, Any]:
        return self.other.propose(state, feed, sampling)
