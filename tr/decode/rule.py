"""What may follow is decided on the host: a grammar, a least length, a thought that must end.

A step runs as if there were no rule. The host takes its tokens one by one; the first that the rule
refuses is drawn again from the same logits, with the same noise, among the allowed ids, and what
follows it in the step is undone. So every position's token depends on the text before it alone, and
steps of any length give the same text. Where top-k, top-p or min-p cut candidates, an allowed token
that was drawn without the mask stands, although the mask would have let other candidates in.
"""

from collections.abc import Iterable
from typing import Protocol

import torch
from jaxtyping import Int32
from torch import Tensor

BITS = 32
REFUSED = -1e30  # a logit that no noise lifts, and that any temperature leaves a finite number


class Rule(Protocol):
    """A text in progress as the rule knows it."""

    @property
    def done(self) -> bool:
        """The text ends with the last token that was taken."""
        ...

    def push(self, token: int) -> bool:
        """Take the text's next token; False, and nothing has changed, where it is refused."""
        ...

    def mask(self) -> Int32[Tensor, " words"]:
        """The ids that `push` would take, at least one: bit i % 32 of word i // 32 stands for i."""
        ...


def masked(logits: Tensor, mask: Int32[Tensor, " words"]) -> Tensor:
    """fp32 logits [rows, ids], refused ones out of reach."""
    bits = torch.arange(BITS, device=mask.device, dtype=torch.int32)
    allowed = ((mask[:, None] >> bits) & 1).flatten()[: logits.shape[1]].bool()
    return logits.float().masked_fill(~allowed, REFUSED)


def mask_of(tokens: Iterable[int], ids: int) -> Int32[Tensor, " words"]:
    """The mask that allows `tokens` of `ids` alone."""
    words = torch.zeros(-(-ids // BITS), dtype=torch.int64)
    for token in set(tokens):
        words[token // BITS] |= 1 << token % BITS
    return words.to(torch.int32)


def mask_without(mask: Int32[Tensor, " words"], tokens: Iterable[int]) -> Int32[Tensor, " words"]:
    """`mask` without `tokens`."""
    return mask & ~mask_of(tokens, len(mask) * BITS)
