"""The end of a step in the middle of a text: all drafts are right, and no end is near.

A row's hidden comes with shares of its norm, as the int4 kernels leave it, and without taps.
"""

from typing import Any

import torch
from torch import Tensor

from kernels.int4_matmul.layout import GROUP
from tr.bench import Bench, Draw, Sizes, Widths

TEXT, ENDS, ROOM = 600, 16, 8192


def cases(c: Widths) -> dict[str, Sizes]:
    widths = {"vocab": c.vocab, "ids": c.vocab, "d": c.d_model}
    return {"raw": widths, "5 taps": {**widths, "taps": 5 * c.d_model}}


def inputs(draw: Draw, rows: int, vocab: int, ids: int, d: int, taps: int = 0) -> list[Any]:
    capacity = TEXT + ROOM
    place = torch.arange(capacity + rows + 1, device=draw.device)
    history = place * place % 7919 % ids
    chosen = history[TEXT + 1 : TEXT + 1 + rows].clone()
    ends = torch.full((ENDS,), -1, device=draw.device)
    ends[0] = ids  # never chosen
    squares = draw(rows, max(1, d // GROUP), dtype=torch.float32).square_().mul_(GROUP / d)
    new, held = ([draw(rows, width) for width in (d, taps)] for _ in range(2))
    pos, behind = draw.scalar(TEXT), draw.scalar(TEXT)
    pending, count = draw.scalar(1), draw.scalar(1)
    anchor = history[TEXT].clone()
    return [
        draw(rows, vocab).mul_(3), ids, chosen, chosen[:-1].clone() if rows > 1 else None,
        ends, draw.scalar(0), draw.scalar(capacity), new[0], squares, new[1],
        anchor, pos, behind, pending, count, *held, history,
    ]  # fmt: skip


def nbytes(logits: Tensor, *others: Any) -> int:
    """Logits, and the rows' hidden and taps in and out."""
    hidden, squares, taps = others[6:9]
    shares = 0 if squares is None else squares.nbytes
    return logits.nbytes + 2 * (hidden.nbytes + taps.nbytes) + shares


BENCH = (Bench("accept", cases, inputs, nbytes),)
