"""Natural logarithms of probabilities from raw logits, before penalties, bias and temperature.

A row is worked on alone, so its bits cannot depend on others; only a few numbers of it leave the
device.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from tr.decode.step import Model

TOP = 20  # alternatives at most
ROWS = 16  # of a prompt whose logits are made at once


@dataclass(frozen=True)
class Logprob:
    """A token's logarithm, and the likeliest tokens with theirs; the lowest id among equals."""

    logprob: float
    top: tuple[tuple[int, float], ...] = ()


def tell(
    logits: Float[Tensor, "rows vocab"], tokens: Int64[Tensor, " rows"], ids: int, top: int
) -> Float[Tensor, "rows told"]:
    """For each row its token's logarithm, the `top` largest ones and their ids, in fp32.

    Ids stay below 2^24, which fp32 holds.
    """
    rows = []
    for row, token in zip(logits, tokens, strict=True):
        x = row[:ids].float()
        x = x - x.logsumexp(0)
        own = x.index_select(0, token[None])
        if not top:
            rows.append(own)
            continue
        best, which = x.sort(descending=True, stable=True)
        rows.append(torch.cat([own, best[:top], which[:top].float()]))
    return torch.stack(rows)


def told(row: Sequence[float]) -> Logprob:
    """A row of `tell` on the host."""
    own, *rest = row
    top = len(rest) // 2
    return Logprob(own, tuple((int(i), p) for p, i in zip(rest[:top], rest[top:], strict=True)))


def prompt_logprobs(
    model: Model, ids: Int64[Tensor, " tokens"], top: int, found: list[Logprob]
) -> Callable[[Tensor, int], None]:
    """What hears a prompt that is read from its first token on, and fills `found`.

    Its second token comes first: nothing stands before the first one.
    """

    def hear(hidden: Tensor, pos: int) -> None:
        for start in range(0, len(hidden), ROWS):
            tokens = ids[pos + start + 1 : pos + start + ROWS + 1].to(hidden.device)
            rows = hidden[start : start + len(tokens)]
            if len(rows):
                logits = model.params.head.sequence(rows, model.ops)
                found.extend(told(row) for row in tell(logits, tokens, model.ids, top).tolist())

    return hear
