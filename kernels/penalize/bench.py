"""A text of 8192 tokens, half of it written, with every penalty and a bias of 1024 ids."""

from typing import Any

import torch
from torch import Tensor

from tr.bench import Bench, Draw, Sizes, Widths

TEXT, START, BIASES = 8192, 4096, 1024


def cases(c: Widths) -> dict[str, Sizes]:
    return {"8192 tokens": {"vocab": c.vocab, "ids": c.vocab}}


def inputs(
    draw: Draw, rows: int, vocab: int, ids: int, text: int = TEXT, start: int = START
) -> list[Any]:
    place = torch.arange(text + rows, device=draw.device)
    history = place * place % 7919 % ids
    tokens = history[text - 1 : text - 1 + rows].clone()  # drafts that come true
    bias_ids = torch.arange(BIASES, device=draw.device) * 3 - 1
    bias_ids = torch.where(bias_ids < ids, bias_ids, -1)  # the first one is unused too
    scalars = [draw.scalar(value) for value in (1.5, 0.25, 1.1)]
    bias = draw(BIASES, dtype=torch.float32)
    logits, at = draw(rows, vocab).mul_(3), draw.scalar(text)
    return [logits, at, tokens, history, draw.scalar(start), *scalars, bias_ids, bias, ids]


def nbytes(logits: Tensor, *others: Any) -> int:
    """Logits in, fp32 out; the text and the counts are small beside them."""
    return logits.nbytes + 4 * logits.numel()


BENCH = (Bench("penalize", cases, inputs, nbytes),)
