"""A vocabulary's embedding; the last of several rows has no draft to read."""

from typing import Any

import torch
from torch import Tensor

from tr.bench import Bench, Draw, Sizes, Widths

POS, EPS = 600, 1e-6


def cases(c: Widths) -> dict[str, Sizes]:
    return {"d_model": {"d": c.d_model, "vocab": c.vocab}}


def inputs(draw: Draw, rows: int, d: int, vocab: int) -> list[Any]:
    place = torch.arange(rows, device=draw.device)
    tokens = place * place % 7919 % vocab
    if rows > 1:
        tokens[-1] = -1
    return [tokens, None, draw.scalar(POS), draw(vocab, d), draw(d), EPS]


def nbytes(
    tokens: Tensor, drafts: Tensor | None, pos: Tensor, embed: Tensor, gain: Tensor, eps: float
) -> int:
    rows = len(tokens) + (0 if drafts is None else len(drafts))
    return (3 * rows + 1) * gain.nbytes


BENCH = (Bench("embed_norm", cases, inputs, nbytes),)
