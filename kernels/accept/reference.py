"""The definition, in torch's own small operations."""

import torch
from torch import Tensor

from kernels.define import variant
from kernels.rms_norm.reference import times_unit

MUTATES = (
    "anchor", "pos", "behind", "pending", "count", "held_hidden", "held_taps", "history",
)  # fmt: skip
NO_TOKEN = -1


def finite(logits: Tensor, ids: int) -> Tensor:
    """Whether every real token's logit is a finite number, as a tensor on the device."""
    low, high = torch.aminmax(logits[:, :ids])
    return (low > -torch.inf) & (high < torch.inf)


def over(tokens: Tensor, at: Tensor, ends: Tensor, start: Tensor, last: Tensor) -> Tensor:
    """Whether the text ends with each of `tokens` at positions `at`; bool [rows]."""
    ended = (tokens[:, None] == ends).any(1) & (at > start)
    return ended | (at >= last)


def accepted(drafts: Tensor, chosen: Tensor) -> Tensor:
    """How many leading drafts equal what the target chose after the token before them."""
    return (drafts == chosen[: len(drafts)]).cumprod(0).sum()


def fake(
    logits: Tensor,
    ids: int,
    chosen: Tensor,
    drafts: Tensor | None,
    ends: Tensor,
    start: Tensor,
    last: Tensor,
    hidden: Tensor,
    squares: Tensor | None,
    taps: Tensor,
    anchor: Tensor,
    pos: Tensor,
    behind: Tensor,
    pending: Tensor,
    count: Tensor,
    held_hidden: Tensor,
    held_taps: Tensor,
    history: Tensor,
) -> Tensor:
    return chosen.new_empty(2 * len(chosen))


@variant("accept", "reference", fake, MUTATES)
def accept(
    logits: Tensor,
    ids: int,
    chosen: Tensor,
    drafts: Tensor | None,
    ends: Tensor,
    start: Tensor,
    last: Tensor,
    hidden: Tensor,
    squares: Tensor | None,
    taps: Tensor,
    anchor: Tensor,
    pos: Tensor,
    behind: Tensor,
    pending: Tensor,
    count: Tensor,
    held_hidden: Tensor,
    held_taps: Tensor,
    history: Tensor,
) -> Tensor:
    """logits [rows, vocab], of which `ids` are real; chosen int64 [rows], drafts int64 [rows - 1].

    The text ends with one of `ends` (-1: an empty place) behind position `start`, and at `last`.
    hidden [rows, d] as `unfold_norm` takes it, with squares [rows, parts] or without; taps
    [rows, width]. Returns int64 [2 rows]: how many rows are kept, then `chosen`, then the drafts.

    Overwritten, all int64 scalars but the last three: `anchor`, the last token, which stands at
    `pos`; `pos` and `behind`, which grow by the kept rows alike; `pending`, how many those are; and
    `count`, the same where some are. Then held_hidden [rows or more, d] and held_taps likewise take
    the rows' own. `history` [capacity] takes `chosen` at pos + 1, ... in any case.
    """
    rows = len(chosen)
    tokens = anchor[None] if drafts is None else torch.cat([anchor[None], drafts])
    at = pos + torch.arange(rows, device=pos.device)
    done = over(tokens, at, ends, start, last)
    kept = (finite(logits, ids) > done[0]).long()
    if rows > 1:
        kept = kept * (accepted(tokens[1:].masked_fill(done[1:], NO_TOKEN), chosen) + 1)
    some = kept > 0
    for held, new in ((held_hidden, times_unit(hidden, squares)), (held_taps, taps)):
        if new.shape[1]:
            held[:rows] = torch.where(some, new, held[:rows])
    history.index_copy_(0, at + 1, chosen)
    result = torch.cat([kept[None], chosen, tokens[1:]])
    behind.add_(kept)
    pending.copy_(kept)
    pos.copy_(behind)
    count.copy_(torch.where(some, kept, count))
    anchor.copy_(history.index_select(0, pos[None])[0])
    return result
